"""Correctness and speed of the sandbox and the reward `code`: real, wrong and hostile programs, malformed responses.

The real programs are the references of MBPP in the folder `ROLL_DATA`.
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
from benchmarks.strings import CASES, responses, slowest_s
from roll.rewards.code.reward import score
from roll.rewards.math import reward as math
from roll.rewards.math.pool import Verdict
from roll.sandbox.base import Program, ResourceLimits
from roll.sandbox.level import BUBBLEWRAP, PLAIN, available, unavailable_reason
from roll.types import Score, Task

CORES = 2
CONCURRENT = 3
"""Programs in flight: one more than cores, so that a waiting program leaves no core idle."""
GOAL = 40.0
TIMEOUT_S = 60.0
"""Limit per program. The slowest reference takes five seconds on a free core, the default limit of the reward."""
NUM_WRAPPED = 200
NUM_STAGED = 40
NUM_STRINGS = 100_000
EVERY_ALGEBRA = 20
"""Every 20th string may reach math-verify, which takes milliseconds instead of microseconds."""
ROUNDS = 5
FILES = ("mbpp_prompt", "mbpp_train", "mbpp_valid", "mbpp_test")
_PYTHON = ("python3", "-I", "-S", "-c")
_WORK = "x = 0\nfor n in range(1_000_000): x += n"
"""The program of a neighbour: 0.1 s of one core."""

CHANGES = {
    "none": "def _changed(value): return None",
    "neighbour": """
def _changed(value):
    if isinstance(value, bool): return not value
    if isinstance(value, (int, float, complex)): return value + 1 if value + 1 != value else -value
    if isinstance(value, str): return value + "x"
    if isinstance(value, (list, tuple)): return value[:-1] if value else type(value)([None])
    if isinstance(value, (set, frozenset)): return value | {"x"}
    if isinstance(value, dict): return {**value, "x": 1}
    return [value]
""",
    "wrong_type": "def _changed(value): return [value] if isinstance(value, str) else repr(value)",
}
"""Source of `_changed`, which replaces every value that a reference returns, by name of the change."""

Row = dict[str, Any]
"""One program of MBPP with its tests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSpent:
    """Time of a piece of work."""

    wall_s: float
    cpu_s: float
    """CPU time of our process and of its finished children."""


def run() -> Result:
    """Programs per second that the reward `code` scores on two cores; the details have all other measurements."""
    details: dict[str, Any] = {"level": available().name, **_hostile(), **_strings()}
    folder, missing = os.environ.get("ROLL_DATA"), unavailable_reason()
    if missing or not folder:
        return _result(skipped=missing or "ROLL_DATA is not set; set it to the folder with the data", details=details)
    rows = references(Path(folder))
    with two_cores():
        details |= asyncio.run(_neighbours())
        details |= asyncio.run(_count_accepted(rows))
        values, spent = asyncio.run(_score_all([(row, row["reference"]) for row in rows]))
        details |= _count_refused(rows, values) | asyncio.run(_stages(rows))
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
    """Restrict this process and its children to two cores inside the block."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:CORES])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


# ---- real programs ----


def references(folder: Path) -> list[Row]:
    """All programs of MBPP with usable tests."""
    texts = ((folder / "code" / f"{name}.jsonl").read_text(encoding="utf-8") for name in FILES)
    rows = [json.loads(line) for text in texts for line in text.splitlines()]
    return [row for row in rows if row["usable"]]


def wrap(row: Row, change: str) -> str:
    """The reference with its return value replaced by a change of `CHANGES`."""
    entry, reference = row["entry_point"], row["reference"]
    setup = f"_original = {{}}\nexec({reference!r}, _original)\n{CHANGES[change]}"
    return f"{reference}\n{setup}\ndef {entry}(*a, **k):\n    return _changed(_original[{entry!r}](*a, **k))\n"


def script(row: Row, response: str) -> str:
    """A response and its tests as one script, which passes if the response is trusted not to cheat."""
    return "\n".join([row["test_setup"], response, *row["tests"]]).replace("\r\n", "\n")


async def _score_all(pairs: Sequence[tuple[Row, str]]) -> tuple[list[float], TimeSpent]:
    """Scores of the responses by the reward, and the time of all together."""
    gate = asyncio.Semaphore(CONCURRENT)

    async def one(row: Row, response: str) -> float:
        task = Task(id=row["id"], domain="code", metadata={key: row[key] for key in _TEST_KEYS})
        async with gate:
            return (await score(task, f"```python\n{response}\n```", timeout_s=TIMEOUT_S)).value

    await one(*pairs[0])  # warm-up: the examiner is compiled once per process
    began, cpu_s = time.perf_counter(), _cpu_s()
    values = await asyncio.gather(*(one(row, response) for row, response in pairs))
    return values, TimeSpent(wall_s=time.perf_counter() - began, cpu_s=_cpu_s() - cpu_s)


_TEST_KEYS = ("entry_point", "tests", "test_setup")


def _count_refused(rows: Sequence[Row], values: Sequence[float]) -> dict[str, Any]:
    refused = [row["id"] for row, value in zip(rows, values, strict=True) if value != 1.0]
    typer.echo(f"{len(rows)} references: {len(refused)} refused")
    return {"references": len(rows), "references_refused": refused}


async def _count_accepted(rows: Sequence[Row]) -> dict[str, Any]:
    """Wrapped references that pass, apart from those whose tests accept them as a plain script too."""
    some, details = rows[:: max(1, len(rows) // NUM_WRAPPED)][:NUM_WRAPPED], dict[str, Any]()
    for change in CHANGES:
        values, _ = await _score_all([(row, wrap(row, change)) for row in some])
        passed = [row for row, value in zip(some, values, strict=True) if value != 0.0]
        blind = [row["id"] for row in passed if await _script_passes(row, wrap(row, change))]
        accepted = [row["id"] for row in passed if row["id"] not in blind]
        typer.echo(f"{len(some)} wrapped to return {change}: {len(accepted)} accepted; blind tests: {blind}")
        details |= {f"{change}_accepted": accepted, f"{change}_tests_blind": blind}
    return {"wrapped": len(some), **details}


async def _script_passes(row: Row, response: str) -> bool:
    return (await BUBBLEWRAP.run(Program(argv=(*_PYTHON, script(row, response))), ResourceLimits())).succeeded


async def _stages(rows: Sequence[Row]) -> dict[str, Any]:
    """CPU time of some programs by stage, and the resulting bound on the rate."""
    some = rows[:: max(1, len(rows) // NUM_STAGED)][:NUM_STAGED]
    sandbox_s = await _cpu_of([("true",)] * NUM_STAGED)
    interpreter_s = await _cpu_of([(*_PYTHON, "pass")] * NUM_STAGED)
    script_s = await _cpu_of([(*_PYTHON, script(row, row["reference"])) for row in some])
    _, examined = await _score_all([(row, row["reference"]) for row in some])
    stages = {
        "sandbox": sandbox_s,
        "interpreter": interpreter_s - sandbox_s,
        "program": script_s - interpreter_s,
        "examiner": examined.cpu_s / len(some) - script_s,
    }
    cpu_ms = {name: round(1e3 * spent_s, 1) for name, spent_s in stages.items()}
    typer.echo(f"CPU time of {len(some)} programs, in ms per program: {cpu_ms}")
    return {"cpu_ms": cpu_ms, "bound_per_s_by_cpu": round(CORES / script_s, 1)}


async def _cpu_of(commands: Sequence[tuple[str, ...]]) -> float:
    """Mean CPU seconds of the commands, each in a separate sandbox."""
    began_s = _cpu_s()
    for argv in commands:
        # process 1 of its namespace is waited for, so its CPU time is counted
        await BUBBLEWRAP.run(Program(argv=argv, first=True), ResourceLimits())
    return (_cpu_s() - began_s) / len(commands)


def _cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


# ---- hostile programs ----


def _hostile() -> dict[str, Any]:
    """Hostile programs that succeed at each level; without isolation, only the listed ones may."""
    details: dict[str, Any] = {"hostile_programs": len(ALL)}
    with host() as machine:
        if not unavailable_reason():
            tried = attacks(BUBBLEWRAP, ALL, machine)
            details["bubblewrap_succeeded"] = [
                name for name, each in tried.items() if each.succeeded or not (each.bounded and each.in_time)
            ]
        tried = attacks(PLAIN, without_isolation(ALL), machine)
    passed = {name for name, each in tried.items() if each.succeeded}
    details["plain_not_stopped"] = sorted(passed & NOT_STOPPED_BY_PLAIN)
    details["plain_not_stopped_and_not_listed"] = sorted(
        name
        for name, each in tried.items()
        if not (each.bounded and each.in_time) or name in passed - NOT_STOPPED_BY_PLAIN
    )
    succeeded = details.get("bubblewrap_succeeded", unavailable_reason())
    typer.echo(f"{len(ALL)} hostile programs: in bubblewrap {succeeded or 'none'} succeeded; with limits alone")
    typer.echo(f"  {len(passed)} of {len(tried)}, not on the list {details['plain_not_stopped_and_not_listed']}")
    return details


NEIGHBOURS = {
    "spin": ALL["spin"].source,
    "fork_bomb": ALL["fork bomb that doubles"].source,
    "memory": "while True:\n x = []\n try:\n  while True: x.append(b'x' * 2**16)\n except MemoryError: pass",
    "output_flood": ALL["output flood"].source,
}
"""Programs that run repeatedly next to a neighbour; `spin` is the baseline of one busy core."""


async def _neighbours() -> dict[str, Any]:
    """Median slowdown of a program next to each attack, measured in alternation."""
    sides = {"alone": None, **NEIGHBOURS}
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _, (name, source) in itertools.product(range(ROUNDS), sides.items()):
        times[name].append(await _time_next_to(source))
    alone_s = statistics.median(times.pop("alone"))
    ratios = {name: round(statistics.median(values) / alone_s, 2) for name, values in times.items()}
    typer.echo(f"a neighbour takes {1e3 * alone_s:.0f} ms alone; slowdown next to others: {ratios}")
    return {"neighbour_alone_ms": round(1e3 * alone_s), "neighbour_slowdown": ratios}


async def _time_next_to(source: str | None) -> float:
    """Seconds of a neighbour while `source` runs repeatedly in another sandbox."""
    attacker = None if source is None else asyncio.create_task(_repeat(source))
    await asyncio.sleep(0.3)
    outcome = await BUBBLEWRAP.run(Program(argv=(*_PYTHON, _WORK)), ResourceLimits(wall_s=60.0))
    if attacker is not None:
        attacker.cancel()
        await asyncio.wait([attacker])
    assert outcome.succeeded, outcome
    return outcome.wall_s


async def _repeat(source: str) -> None:
    while True:
        await BUBBLEWRAP.run(Program(argv=(*_PYTHON, source)), ResourceLimits())


# ---- malformed responses ----


def _strings() -> dict[str, Any]:
    """The slowest call of every text verifier; an exception ends the benchmark."""
    texts = list(itertools.islice(responses(), NUM_STRINGS))
    slowest = {name: slowest_s(name, texts) for name in CASES if name != "math"}
    slowest["math"] = slowest_s("math", texts, reward=_read_only)
    algebra = "skipped: it is not installed"
    if importlib.util.find_spec("math_verify") is not None:
        slowest["math"] = max(slowest["math"], slowest_s("math", texts[::EVERY_ALGEBRA]))
        algebra = f"used for every {EVERY_ALGEBRA}th string; the others are scored without algebra"
    slowest_ms = {name: round(1e3 * spent_s, 1) for name, spent_s in slowest.items()}
    typer.echo(f"{len(texts)} strings through {len(CASES)} verifiers; slowest calls in ms: {slowest_ms}")
    return {"strings": len(texts), "slowest_call_cpu_ms": slowest_ms, "math_verify": algebra}


def _read_only(task: Task, response: str, **options: Any) -> Score:
    """The reward `math` without algebra: answers that need it count as different."""
    return math.score_answer(str(task.answer), response, lambda gold, answer: Verdict.DIFFERENT)
