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
from typing import Protocol

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
