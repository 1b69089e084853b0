"""The reward pool under load: trajectories finish at random moments, and each wants its score at once.

What the pool adds to a score is the time from asking to having it, less the time that the reward itself took in its
process: waiting for a free process, two pickles and two trips through a socket.
"""

from __future__ import annotations

import asyncio
import importlib.util
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import typer

from benchmarks.result import Result
from roll.config.schema import Rewards
from roll.errors import ConfigError
from roll.rewards import code, math
from roll.rollout.reward_pool import Scorer
from roll.sandbox.level import choose
from roll.types import Call, Message, Score, Task
from roll.wiring.rewards import build_scorer

WORKERS = 2
BOUND_MS = 50.0
_TOOK = "took_s"
_ALGEBRA = importlib.util.find_spec("math_verify") is not None
_WARM_UP = 32
"""Scores before those that count: enough to import and start whatever a reward needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How many trajectories finish a second, by reward, and for how long."""

    duration_s: float = 20.0
    math: float = 64.0
    code: float = 20.0


@dataclass(frozen=True, slots=True)
class Arrival:
    """A trajectory that finishes so many seconds after the beginning."""

    at_s: float
    reward: str
    task: Task
    reply: str


@dataclass(frozen=True, slots=True)
class Served:
    """One score: how long it took to have it, and how long the reward itself took."""

    reward: str
    total_s: float
    scoring_s: float


def run(load: Load | None = None) -> Result:
    """Milliseconds that the pool adds to half of the scores of `math`; `code` alone and both at once are details."""
    load = load or Load()
    rates = {"math": {"math": load.math}, "code": {"code": load.code}, "both": {"math": load.math, "code": load.code}}
    missing = _no_sandbox()
    if missing:
        rates = {"math": rates["math"]}
    details: dict[str, Any] = {name: _phase(name, each, load.duration_s) for name, each in rates.items()}
    ours = details["math"]["math"]["added_median_ms"]
    details["algebra"] = _ALGEBRA or "left out: math-verify is not installed"
    return Result(
        name="reward_pool",
        unit="ms added to the median score of math",
        higher_is_better=False,
        ours=ours,
        bound=BOUND_MS,
        details=details | ({"no_code": missing} if missing else {}),
    )


def arrivals(rates: Mapping[str, float], duration_s: float, seed: int = 0) -> list[Arrival]:
    """Poisson processes of these rates, merged; the same for the same seed."""
    source = random.Random(seed)
    found: list[Arrival] = []
    for reward, rate in rates.items():
        at_s, makers = source.expovariate(rate), _MAKERS[reward]
        while at_s < duration_s:
            task, reply = makers(source, len(found))
            found.append(Arrival(at_s, reward, task, reply))
            at_s += source.expovariate(rate)
    return sorted(found, key=lambda arrival: arrival.at_s)


def timed_math(task: Task, reply: str) -> Score:
    """The reward `math`, with the seconds it took as a part."""
    began = time.perf_counter()
    found: Score | float = math.score(task, reply)
    return _timed(found, began)


async def timed_code(task: Task, reply: str) -> Score:
    """The reward `code`, with the seconds it took as a part."""
    began = time.perf_counter()
    return _timed(await code.score(task, reply), began)


def _timed(found: Score | float, began: float) -> Score:
    value = found.value if isinstance(found, Score) else found
    return Score(value, {_TOOK: time.perf_counter() - began})


_REWARDS = {name: Call(f"{__name__}:timed_{name}") for name in ("math", "code")}


def _phase(name: str, rates: Mapping[str, float], duration_s: float) -> dict[str, Any]:
    served, waiting, elapsed_s = asyncio.run(_serve(arrivals(rates, duration_s)))
    found: dict[str, Any] = {
        reward: described([each for each in served if each.reward == reward], elapsed_s) for reward in rates
    }
    for reward, numbers in found.items():
        said = ", ".join(f"{key} {value:g}" for key, value in numbers.items())
        typer.echo(f"{name}: {reward}: {said}; waiting at the end: {waiting}")
    return {**found, "waiting_at_the_end": waiting, "over_after_s": round(elapsed_s, 2)}


async def _serve(expected: Sequence[Arrival]) -> tuple[list[Served], int, float]:
    """Ask for every score at its moment; also how many were still waited for at the last, and when all were there."""
    scorer = build_scorer(Rewards(workers=WORKERS))
    await scorer.start()
    try:
        for arrival in expected[:_WARM_UP]:
            await asyncio.gather(*(_one(scorer, arrival) for _ in range(WORKERS)))  # in every process
        began = time.perf_counter()
        tasks: list[asyncio.Task[Served]] = []
        for arrival in expected:
            await asyncio.sleep(arrival.at_s - (time.perf_counter() - began))
            tasks.append(asyncio.create_task(_one(scorer, arrival)))
        waiting = sum(not task.done() for task in tasks)
        return list(await asyncio.gather(*tasks)), waiting, time.perf_counter() - began
    finally:
        await scorer.stop()


async def _one(scorer: Scorer, arrival: Arrival) -> Served:
    began = time.perf_counter()
    outcome = await scorer.score(_REWARDS[arrival.reward], arrival.task, arrival.reply)
    total_s = time.perf_counter() - began
    assert outcome.score is not None, outcome.reason
    assert outcome.score.value == arrival.task.metadata["right"], f"{arrival.task}: {arrival.reply!r}"
    return Served(arrival.reward, total_s, outcome.score.parts[_TOOK])


def described(served: Sequence[Served], elapsed_s: float) -> dict[str, float]:
    """How many scores a second there were until all were there, and what was added to them, in milliseconds."""
    added = [1e3 * (each.total_s - each.scoring_s) for each in served]
    return {
        "per_s": round(len(served) / elapsed_s, 1),
        "added_median_ms": round(statistics.median(added), 2),
        "added_p95_ms": round(_p95(added), 2),
        "scoring_median_ms": round(1e3 * statistics.median(each.scoring_s for each in served), 2),
    }


def _p95(values: Sequence[float]) -> float:
    return sorted(values)[int(0.95 * (len(values) - 1))]


def _math_reply(source: random.Random, number: int) -> tuple[Task, str]:
    """Half plain numbers, a quarter fractions in another notation, a quarter roots that only algebra makes equal."""
    right, top, bottom = source.random() < 0.5, source.randint(1, 99), source.randint(2, 99)
    forms = [
        (str(100 * top), f"{100 * top}.0"),
        (f"{top},{bottom + 100}", f"{top}{bottom + 100}"),
        (rf"\frac{{{top}}}{{{bottom}}}", f"{top}/{bottom}"),
        (rf"{top}\sqrt{{{bottom}}}", rf"\sqrt{{{top * top * bottom}}}"),
    ]
    gold, said = source.choice(forms if _ALGEBRA else forms[:-1])
    reply = f"<think>{'so ' * source.randint(50, 500)}</think>It is \\boxed{{{said if right else f'7{said}'}}}."
    return _task(f"math-{number}", gold, {"right": float(right)}), reply


def _code_reply(source: random.Random, number: int) -> tuple[Task, str]:
    """A function of three lines against three asserts; half of the replies are wrong."""
    right, factor, offset = source.random() < 0.5, source.randint(2, 99), source.randint(1, 99)
    tests = [f"assert line({x}) == {factor * x + offset}" for x in range(1, 4)]
    sign = "+" if right else "-"
    reply = f"Here:\n```python\ndef line(x):\n    y = {factor} * x\n    return y {sign} {offset}\n```\n"
    return _task(f"code-{number}", None, {"tests": tests, "right": float(right)}), reply


_MAKERS = {"math": _math_reply, "code": _code_reply}


def _task(name: str, answer: str | None, metadata: dict[str, Any]) -> Task:
    return Task(id=name, domain="bench", messages=(Message("user", "?"),), answer=answer, metadata=metadata)


def _no_sandbox() -> str:
    """Why `code` cannot be asked here, if so."""
    try:
        choose("auto")
    except ConfigError as error:
        return str(error)
    return ""
