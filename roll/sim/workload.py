"""Lengths of responses and waits, and an environment that only waits.

Lengths are pure functions of a key, so that a repeated run draws the same ones.
"""

from __future__ import annotations

import asyncio
import math
import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Protocol

from roll.engines.base import Request
from roll.envs.base import StepResult
from roll.types import Message, Task

QUESTION = "0"


class Lengths(Protocol):
    """A distribution of positive numbers."""

    def draw(self, key: int) -> float:
        """The number that belongs to `key`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LogNormal:
    """Mostly short, with a long tail; not truncated."""

    median: float
    sigma: float

    @property
    def mean(self) -> float:
        return self.median * math.exp(self.sigma**2 / 2)

    def draw(self, key: int) -> float:
        return random.Random(key).lognormvariate(math.log(self.median), self.sigma)


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """A constant."""

    value: float

    def draw(self, key: int) -> float:
        return self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedLengths:
    """The empirical distribution of observed lengths."""

    observed: Sequence[float]

    def draw(self, key: int) -> float:
        return self.observed[random.Random(key).randrange(len(self.observed))]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnLengths:
    """The empirical distribution of the lengths of each turn; later turns have that of the last.

    Siblings are alike: `sibling_correlation` is that of their normal scores, so that tasks differ in their lengths.
    """

    observed: Sequence[Sequence[float]]
    """By turn, in increasing order."""
    sibling_correlation: float = 0.0

    def draw(self, key: int) -> float:
        return RecordedLengths(observed=self.observed[0]).draw(key)

    def draw_for(self, request: Request) -> float:
        """The length of the response to a request."""
        turn = self.observed[min(turn_of(request), len(self.observed) - 1)]
        common, single = (random.Random(key).gauss() for key in (zlib.crc32(request.family.encode()), request.key))
        weight = self.sibling_correlation
        quantile = NormalDist().cdf(math.sqrt(weight) * common + math.sqrt(1 - weight) * single)
        return turn[min(int(quantile * len(turn)), len(turn) - 1)]


def turn_of(request: Request) -> int:
    """Number of earlier turns of the attempt, which the scheduler writes at the end of the id."""
    last = request.id.rpartition("/")[2].partition("~")[0]  # the router adds a number
    return int(last) if last.isdecimal() else 0


class SimEnv:
    """Ends after `turns` responses; the latency of each depends on the task and on the response.

    Latencies are log-normal; a median of 0 answers at once. Their sum is the metric `waited_s`.
    """

    def __init__(self, task: Task, *, turns: int = 1, median_s: float = 0.0, sigma: float = 0.0) -> None:
        self._seed, self._turns = task.seed, turns
        self._latency = LogNormal(median=median_s, sigma=sigma) if median_s > 0 else None
        self._num_turns, self._waited_s = 0, 0.0

    async def start(self) -> tuple[Message, ...]:
        return (Message("user", QUESTION),)

    async def step(self, response: str) -> StepResult:
        self._num_turns += 1
        key = zlib.crc32(f"{self._seed} {self._num_turns} {response[:64]}".encode())
        if self._latency is not None:
            latency_s = self._latency.draw(key)
            self._waited_s += latency_s
            await asyncio.sleep(latency_s)
        return StepResult(
            messages=(Message("user", QUESTION),),
            reward=float(key % 2),
            done=self._num_turns == self._turns,
            metrics={"waited_s": self._waited_s},
        )

    async def close(self) -> None:
        """Nothing to release."""


class RecordedEnv:
    """Ends after a recorded number of responses; each waits a recorded time, and so does the end.

    The draws depend on the task and on the response, so that siblings differ.
    """

    def __init__(
        self, task: Task, *, turns: Sequence[int] = (1,), waits_s: Sequence[float], ends_s: Sequence[float]
    ) -> None:
        self._seed, self._turns, self._waits_s, self._ends_s = task.seed, turns, waits_s, ends_s
        self._num_turns = self._last = 0

    async def start(self) -> tuple[Message, ...]:
        return (Message("user", QUESTION),)

    async def step(self, response: str) -> StepResult:
        self._num_turns += 1
        key = zlib.crc32(f"{self._seed} {self._num_turns} {response[:64]}".encode())
        draws = random.Random(key)
        self._last = self._last or draws.choice(self._turns)
        done = self._num_turns >= self._last
        wait_s = draws.choice(self._waits_s) + (draws.choice(self._ends_s) if done else 0.0)
        await asyncio.sleep(wait_s)
        return StepResult(messages=(Message("user", QUESTION),), reward=float(key % 2), done=done)

    async def close(self) -> None:
        """Nothing to release."""
