"""An environment that takes time and has no content."""

from __future__ import annotations

import asyncio
import zlib

from roll.envs.base import StepResult
from roll.sim.lengths import LogNormal
from roll.types import Message, Task

QUESTION = "0"


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
