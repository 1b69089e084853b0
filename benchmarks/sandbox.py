"""Whether the sandbox holds and how fast it is: real programs, forged passes, hostile programs, broken replies.

The real programs are the references of MBPP in the folder that `ROLL_DATA` names.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import itertools
import json
import os
import resource
import statistics
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from benchmarks.attacks import NOT_STOPPED_BY_PLAIN, attacks, host, without_isolation
from benchmarks.hostile import ALL
from benchmarks.result import Result
from benchmarks.strings import CASES, replies, slowest_s
from roll.rewards import math
from roll.rewards.code import score
from roll.rewards.math_process import Verdict
from roll.sandbox.base import Limits, Program
from roll.sandbox.level import BUBBLEWRAP, PLAIN, available, why_not
from roll.types import Score, Task

CORES = 2
AT_ONCE = 3
"""Programs under way: one more than cores, for the moments in which one only waits."""
GOAL = 40.0
TIMEOUT_S = 60.0
"""Of one program; the slowest reference computes for five seconds, which is the reward's own limit, on a free core."""
NUM_WRAPPED = 200
NUM_STAGED = 40
NUM_STRINGS = 100_000
EVERY_ALGEBRA = 20
"""Of the strings, one in so many may reach math-verify, which takes milliseconds where reading takes microseconds."""
ROUNDS = 5
FILES = ("mbpp_prompt", "mbpp_train", "mbpp_valid", "mbpp_test")
_PYTHON = ("python3", "-I", "-S", "-c")
_WORK = "x = 0\nfor n in range(1_000_000): x += n"
"""What a neighbour computes: a tenth of a second of one core."""

CHANGES = {
    "none": "def _changed(found): return None",
    "neighbour": """
def _changed(found):
    if isinstance(found, bool): return not found
    if isinstance(found, (int, float, complex)): return found + 1 if found + 1 != found else -found
    if isinstance(found, str): return found + "x"
    if isinstance(found, (list, tuple)): return found[:-1] if found else type(found)([None])
    if isinstance(found, (set, frozenset)): return found | {"x"}
    if isinstance(found, dict): return {**found, "x": 1}
    return [found]
""",
    "wrong_type": "def _changed(found): return [found] if isinstance(found, str) else repr(found)",
}
"""What becomes of everything that a reference returns, by name, as source."""

Row = dict[str, Any]
"""One program of MBPP with its tests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What a piece of work took."""

    wall_s: float
    cpu_s: float
    """Of our process and of those that it waited for."""


def run() -> Result:
    """Programs a second that the reward `code` scores on two cores; everything else stands in the details."""
    details: dict[str, Any] = {"level": available().name, **_hostile(), **_strings()}
    folder, missing = os.environ.get("ROLL_DATA"), why_not()
    if missing or not folder:
        return _result(skipped=missing or "ROLL_DATA names no folder with data", details=details)
    rows = references(Path(folder))
    with two_cores():
        details |= asyncio.run(_neighbours())
        details |= asyncio.run(_wrong(rows))
        values, spent = asyncio.run(_scored([(row, row["reference"]) for row in rows]))
        details |= _right(rows, values) | asyncio.run(_stages(rows))
    details["cpu_ms_a_program"] = round(1e3 * spent.cpu_s / len(rows), 1)
    details["per_s_by_cpu"] = round(CORES * len(rows) / spent.cpu_s, 1)
    details["load_average"] = round(os.getloadavg()[0], 1)
    return _result(ours=len(rows) / spent.wall_s, details=details)


def _result(*, ours: float | None = None, details: dict[str, Any], skipped: str = "") -> Result:
    return Result(
        name="sandbox",
        unit="programs/s",
        higher_is_better=True,
        ours=ours,
        bound=GOAL,
        details=details,
        skipped=skipped,
    )


@contextlib.contextmanager
def two_cores() -> Generator[None]:
    """This process and all that it starts stay on two of its cores meanwhile."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:CORES])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


# ---- real programs ----


def references(folder: Path) -> list[Row]:
    """All programs of MBPP whose tests can be used."""
    texts = ((folder / "code" / f"{name}.jsonl").read_text(encoding="utf-8") for name in FILES)
    rows = [json.loads(line) for text in texts for line in text.splitlines()]
    return [row for row in rows if row["usable"]]


def wrapped(row: Row, change: str) -> str:
    """The reference, with something else in place of what it returns."""
    entry, reference = row["entry_point"], row["reference"]
    own = f"_own = {{}}\nexec({reference!r}, _own)\n{CHANGES[change]}"
    return f"{reference}\n{own}\ndef {entry}(*a, **k):\n    return _changed(_own[{entry!r}](*a, **k))\n"


def script(row: Row, reply: str) -> str:
    """A reply and its tests as one program, which is what a pass would be to whoever trusts the reply."""
    return "\n".join([row["test_setup"], reply, *row["tests"]]).replace("\r\n", "\n")


async def _scored(pairs: Sequence[tuple[Row, str]]) -> tuple[list[float], Spent]:
    """The scores of replies, as the reward gives them, and what they took together."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(row: Row, reply: str) -> float:
        task = Task(id=row["id"], domain="code", metadata={key: row[key] for key in _TESTED_BY})
        async with gate:
            return (await score(task, f"```python\n{reply}\n```", timeout_s=TIMEOUT_S)).value

    await one(*pairs[0])  # the examiner is compiled once in a process
    began, cpu_s = time.perf_counter(), _cpu_s()
    values = await asyncio.gather(*(one(row, reply) for row, reply in pairs))
    return values, Spent(wall_s=time.perf_counter() - began, cpu_s=_cpu_s() - cpu_s)


_TESTED_BY = ("entry_point", "tests", "test_setup")


def _right(rows: Sequence[Row], values: Sequence[float]) -> dict[str, Any]:
    refused = [row["id"] for row, value in zip(rows, values, strict=True) if value != 1.0]
    typer.echo(f"{len(rows)} references: {len(refused)} refused")
    return {"references": len(rows), "references_refused": refused}


async def _wrong(rows: Sequence[Row]) -> dict[str, Any]:
    """Wrapped references that pass, but for those whose tests accept them wherever they run."""
    some, details = rows[:: max(1, len(rows) // NUM_WRAPPED)][:NUM_WRAPPED], dict[str, Any]()
    for change in CHANGES:
        values, _ = await _scored([(row, wrapped(row, change)) for row in some])
        passed = [row for row, value in zip(some, values, strict=True) if value != 0.0]
        blind = [row["id"] for row in passed if await _accepted(row, wrapped(row, change))]
        accepted = [row["id"] for row in passed if row["id"] not in blind]
        typer.echo(f"{len(some)} wrapped to return {change}: {len(accepted)} accepted; blind tests: {blind}")
        details |= {f"{change}_accepted": accepted, f"{change}_tests_blind": blind}
    return {"wrapped": len(some), **details}


async def _accepted(row: Row, reply: str) -> bool:
    return (await BUBBLEWRAP.run(Program(argv=(*_PYTHON, script(row, reply))), Limits())).succeeded


async def _stages(rows: Sequence[Row]) -> dict[str, Any]:
    """Where the processor time of some programs goes, stage by stage, and what rate none could exceed."""
    some = rows[:: max(1, len(rows) // NUM_STAGED)][:NUM_STAGED]
    sandbox_s = await _cpu_of([("true",)] * NUM_STAGED)
    interpreter_s = await _cpu_of([(*_PYTHON, "pass")] * NUM_STAGED)
    script_s = await _cpu_of([(*_PYTHON, script(row, row["reference"])) for row in some])
    _, examined = await _scored([(row, row["reference"]) for row in some])
    stages = {
        "sandbox": sandbox_s,
        "interpreter": interpreter_s - sandbox_s,
        "program": script_s - interpreter_s,
        "examiner": examined.cpu_s / len(some) - script_s,
    }
    cpu_ms = {name: round(1e3 * spent_s, 1) for name, spent_s in stages.items()}
    typer.echo(f"processor time of {len(some)} programs, each in ms: {cpu_ms}")
    return {"cpu_ms": cpu_ms, "bound_per_s_by_cpu": round(CORES / script_s, 1)}


async def _cpu_of(commands: Sequence[tuple[str, ...]]) -> float:
    """Processor seconds of one, each in a sandbox of its own."""
    began_s = _cpu_s()
    for argv in commands:
        await BUBBLEWRAP.run(Program(argv=argv, first=True), Limits())  # as the first, it is waited for and counted
    return (_cpu_s() - began_s) / len(commands)


def _cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


# ---- hostile programs ----


def _hostile() -> dict[str, Any]:
    """How many succeed at each level, and whether the lower one stops all that it promises to."""
    details: dict[str, Any] = {"hostile_programs": len(ALL)}
    with host() as machine:
        if not why_not():
            tried = attacks(BUBBLEWRAP, ALL, machine)
            details["bubblewrap_succeeded"] = [
                name for name, each in tried.items() if each.succeeded or not each.bounded
            ]
        tried = attacks(PLAIN, without_isolation(ALL), machine)
    passed = {name for name, each in tried.items() if each.succeeded}
    details["plain_not_stopped"] = sorted(passed & NOT_STOPPED_BY_PLAIN)
    details["plain_not_stopped_and_not_listed"] = sorted(
        name for name, each in tried.items() if not each.bounded or name in passed - NOT_STOPPED_BY_PLAIN
    )
    succeeded = details.get("bubblewrap_succeeded", why_not())
    typer.echo(f"{len(ALL)} hostile programs: in bubblewrap {succeeded or 'none'} succeeded; with limits alone")
    typer.echo(f"  {len(passed)} of {len(tried)}, not on the list {details['plain_not_stopped_and_not_listed']}")
    return details


NEIGHBOURS = {
    "spin": ALL["spin"].source,
    "fork_bomb": ALL["fork bomb that doubles"].source,
    "memory": "while True:\n x = []\n try:\n  while True: x.append(b'x' * 2**16)\n except MemoryError: pass",
    "output_flood": ALL["output flood"].source,
}
"""What runs beside a neighbour, over and over; `spin` is one honest core's worth."""


async def _neighbours() -> dict[str, Any]:
    """How much longer a program takes beside each attack than alone, in turn, by the median."""
    sides = {"alone": None, **NEIGHBOURS}
    found: dict[str, list[float]] = {name: [] for name in sides}
    for _, (name, source) in itertools.product(range(ROUNDS), sides.items()):
        found[name].append(await _beside(source))
    alone_s = statistics.median(found.pop("alone"))
    ratios = {name: round(statistics.median(times) / alone_s, 2) for name, times in found.items()}
    typer.echo(f"a neighbour takes {1e3 * alone_s:.0f} ms alone, and beside others times {ratios}")
    return {"neighbour_alone_ms": round(1e3 * alone_s), "neighbour_slowdown": ratios}


async def _beside(source: str | None) -> float:
    """Seconds that a neighbour takes while `source` runs in a sandbox beside it."""
    attacker = None if source is None else asyncio.create_task(_over_and_over(source))
    await asyncio.sleep(0.3)
    outcome = await BUBBLEWRAP.run(Program(argv=(*_PYTHON, _WORK)), Limits(wall_s=60.0))
    if attacker is not None:
        attacker.cancel()
        await asyncio.wait([attacker])
    assert outcome.succeeded, outcome
    return outcome.wall_s


async def _over_and_over(source: str) -> None:
    while True:
        await BUBBLEWRAP.run(Program(argv=(*_PYTHON, source)), Limits())


# ---- broken replies ----


def _strings() -> dict[str, Any]:
    """The slowest call of every verifier of text; one that raises ends the benchmark."""
    texts = list(itertools.islice(replies(), NUM_STRINGS))
    slowest = {name: slowest_s(name, texts) for name in CASES if name != "math"}
    slowest["math"] = slowest_s("math", texts, reward=_read_only)
    algebra = "left out: it is not installed"
    if importlib.util.find_spec("math_verify") is not None:
        slowest["math"] = max(slowest["math"], slowest_s("math", texts[::EVERY_ALGEBRA]))
        algebra = f"may be asked about every {EVERY_ALGEBRA}th string; the others are scored by reading alone"
    slowest_ms = {name: round(1e3 * spent_s, 1) for name, spent_s in slowest.items()}
    typer.echo(f"{len(texts)} strings through {len(CASES)} verifiers; slowest calls in ms: {slowest_ms}")
    return {"strings": len(texts), "slowest_call_cpu_ms": slowest_ms, "math_verify": algebra}


def _read_only(task: Task, reply: str, **options: Any) -> Score:
    """The reward `math`, where nothing that takes algebra is the same."""
    return math.compared(str(task.answer), reply, lambda gold, said: Verdict.DIFFERENT)
