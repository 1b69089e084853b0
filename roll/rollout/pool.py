"""Where replies are scored: here, or in processes that can be killed when a reward never ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from roll.cluster.processes import ProcessCluster, TimedOut
from roll.errors import RewardFailed, WorkerDied
from roll.rewards.worker import RewardWorker
from roll.types import Call, Score, Task

Judge: TypeAlias = Callable[[Call, Task, str], Awaitable[Score]]
"""Scores a reply to a task by the reward of that name; raises `RewardFailed` where there is no score."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardPool:
    """Processes that score. A failure of ours, such as a killed worker, is tried again and never becomes a score."""

    workers: ProcessCluster[RewardWorker]
    max_retries: int

    async def start(self) -> None:
        await self.workers.start()

    async def stop(self) -> None:
        await self.workers.stop()

    async def score(self, reward: Call, task: Task, reply: str) -> Score:
        """A `Judge`: in the first process that is free, within the pool's limit of time."""
        place = f"reward {reward.name!r} on task {task.id!r}"
        tries = 0
        while True:
            tries += 1
            try:
                return await self.workers.any(RewardWorker.score, reward, task, reply)
            except TimedOut:
                limit_s = self.workers.limit_s
                raise RewardFailed(f"{place}: timed out after {limit_s:g} s and was killed; see why it hangs") from None
            except WorkerDied as error:
                if tries > self.max_retries:
                    raise RewardFailed(f"{place}: its process died {tries} times; see what kills it") from error
