"""`RewardService` over child processes, which can be killed when a reward does not return.

| call | waits for | woken by |
|---|---|---|
| `start` | every process | their first answer |
| `score` | a free worker, the reward's start in it, its answer | the answer; the time limits; the worker's death |
| `stop` | calls in flight, the stop of every reward | their answers, or their time limits |
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from roll.cluster.process import ProcessCluster, TimedOut
from roll.errors import WorkerDied
from roll.journal.records import IDLE
from roll.journal.store import Activity, Journal
from roll.rewards.base import LocalRewards
from roll.rewards.result import RewardFault, RewardResult
from roll.types import Spec, Task

_IDLE = f"{IDLE}responses"


@dataclass(slots=True, kw_only=True)
class RewardPool:
    """Scores in worker processes, one response per process at a time. A process that hangs or dies is replaced."""

    workers: ProcessCluster[LocalRewards]
    max_retries: int
    _free: asyncio.Queue[int] = field(default_factory=asyncio.Queue[int], init=False)
    _activities: Sequence[Activity] = field(default=(), init=False)
    """One per worker, if activity is recorded."""

    def __post_init__(self) -> None:
        for rank in range(self.workers.size):
            self._free.put_nowait(rank)

    async def start(self) -> None:
        await self.workers.start()

    def record_activity(self, journal: Journal) -> None:
        """From now on, record in the journal what each worker is doing."""
        self._activities = [Activity(journal, f"reward-{rank}") for rank in range(self.workers.size)]
        for rank in range(self.workers.size):
            self._record(rank, _IDLE)

    async def stop(self) -> None:
        """Stop every reward and process; raises `RewardFailed` at the end if a reward fails."""
        try:
            stops = (self._stop_rewards(rank) for rank in self.workers.alive)
            results = await asyncio.gather(*stops, return_exceptions=True)
        finally:
            await self.workers.stop()
        for error in filter(None, results):
            raise error

    async def score(self, reward: Spec, task: Task, response: str) -> RewardResult:
        """The reward of `response`, from the first free process. Infrastructure failures are retried."""
        for _ in range(self.max_retries):
            result = await self._score(reward, task, response)
            if result.fault is not RewardFault.INFRASTRUCTURE:
                return result
        return await self._score(reward, task, response)

    async def _score(self, reward: Spec, task: Task, response: str) -> RewardResult:
        where = f"reward {reward.name!r} on task {task.id!r}"
        rank = await self._free.get()
        try:
            return await self._score_at(rank, reward, task, response)
        except TimedOut:
            limit_s = self.workers.timeout_s
            return RewardResult.timeout(f"{where}: timed out after {limit_s:g} s and was killed; see why it hangs")
        except WorkerDied as error:
            return RewardResult.failure(RewardFault.INFRASTRUCTURE, f"{where}: {error}; see what kills it")
        finally:
            self._record(rank, _IDLE)
            self._free.put_nowait(rank)

    async def _score_at(self, rank: int, reward: Spec, task: Task, response: str) -> RewardResult:
        """The answer of one worker, once the reward has been started in it."""
        while True:
            self._record(rank, "score")
            result = await self.workers.at(rank, LocalRewards.score_if_started, reward, task, response)
            if result is not None:
                return result
            self._record(rank, "start")
            try:
                failure = await self.workers.at(rank, LocalRewards.start_reward, reward)
            except TimedOut as error:
                return RewardResult.timeout(f"reward {reward.name!r}: {error}; raise rewards.start_timeout_s")
            if failure is not None:
                return failure

    def _record(self, rank: int, activity: str) -> None:
        if self._activities:
            self._activities[rank].enter(activity)

    async def _stop_rewards(self, rank: int) -> None:
        with contextlib.suppress(WorkerDied):  # it is about to be killed anyway
            await self.workers.at(rank, LocalRewards.stop)
