"""Mutates the examples and counts faults of `roll check`, and of `roll train` for some of the files that pass.

A fault is a traceback, an exit code other than 0 and 2, more than 2 s of CPU, or a file that `check` accepts and
`train` refuses. Half of the files have two mutations. `ROLL_FUZZ_CASES` sets their number.
"""

from __future__ import annotations

import contextlib
import copy
import io
import multiprocessing
import os
import random
import signal
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
import yaml

from benchmarks.result import Result
from roll.tracking.progress import bar

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.yaml"))
LIMIT_S = 2.0
"""CPU seconds of one `roll check`."""
TRAIN_S = 120.0
"""Wall seconds of one `roll train`; a run that takes longer is counted, not judged."""
SMALL = ("steps=1", "rollout.groups_per_step=2", "rollout.group_size=2", "validation.every=1000000", "name=fuzz")
"""Overrides that make one step of most examples short. `check` has to accept the file with them too."""
VALUES: tuple[Any, ...] = (
    *(None, "", " ", "x", "x" * 1000, "ß\u202e\x07", "0", "yes", "1e3", "${HOME}", "${", "../..", "/dev/null", "a:b"),
    *(0, 1, -1, 2**31, 2**63, 10**40, -(10**40), 0.0, 0.5, -0.5, 1e-300, 1e300, float("nan"), float("inf"), "a.b:c"),
    *(True, False, [], {}, [None], [[]], {"": None}, {"kind": None}, {1: 2}, [0, "x"], {"name": "x"}, [1] * 50),
)
_FRESH = multiprocessing.get_context("forkserver")


@dataclass(frozen=True, slots=True)
class Verdict:
    """Outcome of one case."""

    accepted: bool
    fault: str = ""
    trained: str = ""
    """`ok`, `slow`, or empty where no run was tried."""


def run() -> Result:
    """The number of faults."""
    num_cases = int(os.environ.get("ROLL_FUZZ_CASES", "10000"))
    counts: Counter[str] = Counter()
    faults: list[str] = []
    _prepare()
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(os.cpu_count(), mp_context=_FRESH, initializer=_prepare) as pool,
        bar(num_cases, "mutated files") as advance,
    ):
        cases = [(seed, Path(folder)) for seed in range(num_cases)]
        for seed, verdict in enumerate(pool.map(_judge, cases, chunksize=4)):
            advance(1)
            counts["accepted" if verdict.accepted else "refused"] += 1
            counts[f"trained_{verdict.trained}"] += bool(verdict.trained)
            if verdict.fault:
                faults.append(f"seed {seed}: {verdict.fault}")
                typer.echo(faults[-1], err=True)
    return Result(
        name="config_fuzz",
        unit="faults",
        higher_is_better=False,
        ours=float(len(faults)),
        bound=1.0,
        details={"files": num_cases, **counts, "faults": faults[:20]},
    )


def _prepare() -> None:
    """Paths of the examples start at the top of the clone; children start with roll imported."""
    os.chdir(Path(__file__).parents[1])
    _FRESH.set_forkserver_preload(["roll.commands.train", "roll.commands.check", "roll.cli"])


def _judge(case: tuple[int, Path]) -> Verdict:
    seed, folder = case
    path = folder / f"{seed}.yaml"
    path.write_text(mutated(seed), encoding="utf-8", errors="surrogatepass")
    try:
        return judge(path, with_training=seed % 10 == 0)
    finally:
        path.unlink()


def judge(path: Path, *, with_training: bool) -> Verdict:
    """What `roll check` says of a file, and `roll train` if it is accepted."""
    code, output, seconds = _call(("check", str(path)))
    if fault := _fault_of_check(code, output, seconds):
        return Verdict(accepted=False, fault=fault)
    if code or not with_training:
        return Verdict(accepted=code == 0)
    code, output, _ = _call(("check", str(path), *SMALL))
    if not _shaped(path) or code or "not on this machine" in output:
        return Verdict(accepted=True)
    return _train(path)


def _fault_of_check(code: int, output: str, seconds: float) -> str:
    if "Traceback" in output or code not in (0, 2):
        return f"check: exit code {code}: {output[-600:]}"
    return f"check: {seconds:.1f} s of CPU" if seconds > LIMIT_S else ""


def _shaped(path: Path) -> bool:
    """Whether the model is made from a shape: weights of the hub are not here."""
    return "shape" in (yaml.safe_load(path.read_text(encoding="utf-8")).get("model") or {})


def _train(path: Path) -> Verdict:
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "output"
        process = _FRESH.Process(target=_child, args=(("train", str(path), *SMALL, f"directory={folder}/runs"), output))
        process.start()
        process.join(TRAIN_S)
        if slow := process.is_alive():
            process.terminate()
            process.join(10)
            process.kill()
        process.join()
        text = output.read_text(encoding="utf-8", errors="replace") if output.exists() else ""
    if "Traceback" in text or (process.exitcode == 2 and not slow):
        return Verdict(accepted=True, fault=f"train: exit code {process.exitcode}: {text[-600:]}", trained="refused")
    return Verdict(accepted=True, trained="slow" if slow else "ok" if process.exitcode == 0 else "failed")


def _child(arguments: Sequence[str], output: Path) -> None:
    from roll.cli import main

    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    main(arguments)


def _call(arguments: Sequence[str]) -> tuple[int, str, float]:
    """Exit code, output and CPU seconds of `roll` in this process."""
    from roll.cli import main

    out, began = io.StringIO(), time.process_time()
    signal.signal(signal.SIGPROF, _too_long)
    signal.setitimer(signal.ITIMER_PROF, 10 * LIMIT_S)
    code = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            main(arguments)
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
        except BaseException:  # noqa: BLE001 - a traceback is what is looked for
            out.write(traceback.format_exc())
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    return code, out.getvalue(), time.process_time() - began


def _too_long(*_: object) -> None:
    raise TimeoutError


def mutated(seed: int) -> str:
    """The text of an example with one mutation, or two for odd seeds; a tenth of them change the text, not its tree."""
    chance = random.Random(seed)
    text = chance.choice(EXAMPLES).read_text(encoding="utf-8")
    for _ in range(1 + seed % 2):
        text = _mutate_text(chance, text) if chance.random() < 0.1 else _mutate_tree(chance, text)
    return text


def _mutate_text(chance: random.Random, text: str) -> str:
    at, to = sorted(chance.randrange(len(text) + 1) for _ in range(2))
    to = min(to, at + 20)
    changes: tuple[Callable[[], str], ...] = (
        lambda: text[:at] + text[to:],
        lambda: text[:at] + text[at:to] + text[at:],
        lambda: text[:at] + chance.choice("\t{}[]:&*!|>'\"%@`#-,?\0\n ") + text[at:],
        lambda: text[:at],
        lambda: text + f"\n{chance.choice(text.splitlines())}\n",
    )
    return chance.choice(changes)()


def _mutate_tree(chance: random.Random, text: str) -> str:
    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError:
        return _mutate_text(chance, text)
    places = list(_places(tree))
    if not places:
        return _mutate_text(chance, text)
    parent, key = chance.choice(places)
    value = parent[key]
    other_parent, other_key = chance.choice(places)
    match chance.randrange(8):
        case 0:
            del parent[key]
        case 1 | 2 | 3:
            parent[key] = copy.deepcopy(chance.choice(VALUES))
        case 4:
            parent[key] = copy.deepcopy(other_parent[other_key])
        case 5:
            parent[key] = [value] if chance.random() < 0.5 else {str(key): value}
        case 6 if isinstance(parent, dict):
            parent[_misspelt(chance, str(key))] = parent.pop(key)
        case _ if isinstance(value, int | float):
            parent[key] = value * chance.choice((-1, 0.1, 2, 10, 1000, 1e9))
        case _:
            parent[key] = str(value)[: chance.randrange(8)]
    return yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Every entry of the mappings and lists of a document."""
    if isinstance(tree, dict | list):
        for key in list(tree) if isinstance(tree, dict) else range(len(tree)):
            yield tree, key
            yield from _places(tree[key])


def _misspelt(chance: random.Random, word: str) -> str:
    at = chance.randrange(len(word)) if word else 0
    return chance.choice((word[:at] + word[at + 1 :], word[:at] + "x" + word[at:], word.upper(), f"{word}s", ""))
