"""Latency that the reward pool adds under load, with trajectories that finish at random times.

The added latency is the time from request to score, minus the time inside the reward: waiting for a free process,
pickling and two transfers through a socket.
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
from roll.rewards.base import RewardService
from roll.rewards.code import reward as code
from roll.rewards.math.reward import Math
from roll.sandbox.level import choose
from roll.types import Message, Score, Spec, Task
from roll.wiring.services import build_reward_service

WORKERS = 2
BOUND_MS = 50.0
_SECONDS = "took_s"
_MATH = Math()
_ALGEBRA = importlib.util.find_spec("math_verify") is not None
_WARM_UP = 32
"""Scores before the timed ones: enough to import and start all that a reward needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Trajectories that finish per second, by reward, and the duration of a phase."""

    duration_s: float = 20.0
    math: float = 64.0
    code: float = 20.0


@dataclass(frozen=True, slots=True)
class Arrival:
    """A trajectory that finishes `at_s` seconds after the start."""

    at_s: float
    reward: str
    task: Task
    response: str


@dataclass(frozen=True, slots=True)
class ScoreTiming:
    """Seconds from the request to its score, and seconds inside the reward."""

    reward: str
    total_s: float
    scoring_s: float


def run(load: Load | None = None) -> Result:
    """Median milliseconds added to a score of `math`; the details have `code` alone and both at once."""
    load = load or Load()
    rates = {"math": {"math": load.math}, "code": {"code": load.code}, "both": {"math": load.math, "code": load.code}}
    missing = _no_sandbox()
    if missing:
        rates = {"math": rates["math"]}
    details: dict[str, Any] = {name: _phase(name, each, load.duration_s) for name, each in rates.items()}
    ours = details["math"]["math"]["added_median_ms"]
    details["algebra"] = _ALGEBRA or "skipped: math-verify is not installed"
    return Result(
        name="reward_pool",
        unit="ms added to the median score of math",
        higher_is_better=False,
        ours=ours,
        bound=BOUND_MS,
        details=details | ({"no_code": missing} if missing else {}),
    )


def arrivals(rates: Mapping[str, float], duration_s: float, seed: int = 0) -> list[Arrival]:
    """Poisson processes with these rates, merged; deterministic for a seed."""
    rng = random.Random(seed)
    merged: list[Arrival] = []
    for reward, rate in rates.items():
        at_s, make = rng.expovariate(rate), _MAKERS[reward]
        while at_s < duration_s:
            task, response = make(rng, len(merged))
            merged.append(Arrival(at_s, reward, task, response))
            at_s += rng.expovariate(rate)
    return sorted(merged, key=lambda arrival: arrival.at_s)


def score_math(task: Task, response: str) -> Score:
    """The reward `math`, with its own seconds as a part of the score."""
    began = time.perf_counter()
    score: Score | float = _MATH.score(task, response)
    return _add_time(score, began)


async def score_code(task: Task, response: str) -> Score:
    """The reward `code`, with its own seconds as a part of the score."""
    began = time.perf_counter()
    return _add_time(await code.score(task, response), began)


def _add_time(score: Score | float, began: float) -> Score:
    value = score.value if isinstance(score, Score) else score
    return Score(value, {_SECONDS: time.perf_counter() - began})


_REWARDS = {name: Spec(f"{__name__}:score_{name}") for name in ("math", "code")}


def _phase(name: str, rates: Mapping[str, float], duration_s: float) -> dict[str, Any]:
    timings, waiting, elapsed_s = asyncio.run(_score_all(arrivals(rates, duration_s)))
    by_reward: dict[str, Any] = {
        reward: summarise([each for each in timings if each.reward == reward], elapsed_s) for reward in rates
    }
    for reward, numbers in by_reward.items():
        text = ", ".join(f"{key} {value:g}" for key, value in numbers.items())
        typer.echo(f"{name}: {reward}: {text}; waiting at the end: {waiting}")
    return {**by_reward, "waiting_at_the_end": waiting, "over_after_s": round(elapsed_s, 2)}


async def _score_all(expected: Sequence[Arrival]) -> tuple[list[ScoreTiming], int, float]:
    """Request each score at its arrival; returns timings, requests pending at the last arrival, and total seconds."""
    service = build_reward_service(Rewards(workers=WORKERS))
    await service.start()
    try:
        for arrival in expected[:_WARM_UP]:
            await asyncio.gather(*(_score_one(service, arrival) for _ in range(WORKERS)))  # in every process
        began = time.perf_counter()
        tasks: list[asyncio.Task[ScoreTiming]] = []
        for arrival in expected:
            await asyncio.sleep(arrival.at_s - (time.perf_counter() - began))
            tasks.append(asyncio.create_task(_score_one(service, arrival)))
        waiting = sum(not task.done() for task in tasks)
        return list(await asyncio.gather(*tasks)), waiting, time.perf_counter() - began
    finally:
        await service.stop()


async def _score_one(service: RewardService, arrival: Arrival) -> ScoreTiming:
    began = time.perf_counter()
    outcome = await service.score(_REWARDS[arrival.reward], arrival.task, arrival.response)
    total_s = time.perf_counter() - began
    assert outcome.score is not None, outcome.reason
    assert outcome.score.value == arrival.task.metadata["right"], f"{arrival.task}: {arrival.response!r}"
    return ScoreTiming(arrival.reward, total_s, outcome.score.parts[_SECONDS])


def summarise(timings: Sequence[ScoreTiming], elapsed_s: float) -> dict[str, float]:
    """Scores per second until the last was there, and medians and percentiles in milliseconds."""
    added = [1e3 * (each.total_s - each.scoring_s) for each in timings]
    return {
        "per_s": round(len(timings) / elapsed_s, 1),
        "added_median_ms": round(statistics.median(added), 2),
        "added_p95_ms": round(_p95(added), 2),
        "scoring_median_ms": round(1e3 * statistics.median(each.scoring_s for each in timings), 2),
    }


def _p95(values: Sequence[float]) -> float:
    return sorted(values)[int(0.95 * (len(values) - 1))]


def _math_response(rng: random.Random, number: int) -> tuple[Task, str]:
    """Half plain numbers, a quarter fractions in another notation, a quarter roots that need algebra."""
    right, top, bottom = rng.random() < 0.5, rng.randint(1, 99), rng.randint(2, 99)
    forms = [
        (str(100 * top), f"{100 * top}.0"),
        (f"{top},{bottom + 100}", f"{top}{bottom + 100}"),
        (rf"\frac{{{top}}}{{{bottom}}}", f"{top}/{bottom}"),
        (rf"{top}\sqrt{{{bottom}}}", rf"\sqrt{{{top * top * bottom}}}"),
    ]
    gold, answer = rng.choice(forms if _ALGEBRA else forms[:-1])
    response = f"<think>{'so ' * rng.randint(50, 500)}</think>It is \\boxed{{{answer if right else f'7{answer}'}}}."
    return _task(f"math-{number}", gold, {"right": float(right)}), response


def _code_response(rng: random.Random, number: int) -> tuple[Task, str]:
    """A function of three lines with three asserts; half of the responses are wrong."""
    right, factor, offset = rng.random() < 0.5, rng.randint(2, 99), rng.randint(1, 99)
    tests = [f"assert line({x}) == {factor * x + offset}" for x in range(1, 4)]
    sign = "+" if right else "-"
    response = f"Here:\n```python\ndef line(x):\n    y = {factor} * x\n    return y {sign} {offset}\n```\n"
    return _task(f"code-{number}", None, {"tests": tests, "right": float(right)}), response


_MAKERS = {"math": _math_response, "code": _code_response}


def _task(name: str, answer: str | None, metadata: dict[str, Any]) -> Task:
    return Task(id=name, domain="bench", messages=(Message("user", "?"),), answer=answer, metadata=metadata)


def _no_sandbox() -> str:
    """The reason why `code` cannot run here; empty if it can."""
    try:
        choose("auto")
    except ConfigError as error:
        return str(error)
    return ""
