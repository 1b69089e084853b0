"""`RewardService` over child processes, which can be killed when a reward does not return.

| call | waits for | woken by |
|---|---|---|
| `start` | every process | their first answer; too many deaths |
| `score` | a free worker, the reward's start in it, its answer | the answer; the time limits; the worker's death |
| `stop` | calls in flight, the stop of every reward | their answers, or their time limits |
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from roll.cluster.pending import PendingCall
from roll.cluster.process import ProcessCluster, TimedOut
from roll.cluster.replacement import FirstStart
from roll.errors import WorkerDied
from roll.journal.records import IDLE
from roll.journal.store import Activity, Journal
from roll.registry import REWARDS
from roll.rewards.base import LocalRewards, module_functions
from roll.rewards.result import RewardFault, RewardResult
from roll.types import Spec, Task

_IDLE = f"{IDLE}responses"


_OWN_LIMITS = frozenset({"roll.rewards.code.reward"})
"""Modules of rewards that limit the time of each program they run; `longest_s(task)` is what that adds up to."""


def own_limit_s(reward: Spec, task: Task) -> float:
    """The longest time that the programs of a reward may take; 0 for a reward without such limits."""
    kinds = [str(section["kind"]) for section in reward.kwargs.get("rewards") or [{"kind": reward.name}]]
    if not any(REWARDS.locate(kind)[0] in _OWN_LIMITS for kind in kinds):
        return 0.0
    return sum(longest(task) for longest in module_functions(reward, "longest_s"))


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
        await self.workers.start(FirstStart(max_deaths=self.max_retries, setting="rewards.max_retries"))

    def record_activity(self, journal: Journal) -> None:
        """From now on, record in the journal what each worker is doing."""
        self._activities = [Activity(journal, f"reward-{rank}") for rank in range(self.workers.size)]
        for rank in range(self.workers.size):
            self._record(rank, _IDLE)

    def pending_calls(self) -> list[PendingCall]:
        """The calls in flight in all workers."""
        return self.workers.pending_calls()

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
        except TimedOut as error:
            limit_s = self._limit_s(reward, task)
            reason = str(error) if limit_s is None else f"timed out after {limit_s:g} s and was killed"
            return RewardResult.timeout(f"{where}: {reason}; see why it hangs")
        except WorkerDied as error:
            reason = f"{where}: {error.what}; {error.fix or 'see what kills it'}"
            return RewardResult.failure(RewardFault.INFRASTRUCTURE, reason)
        finally:
            self._record(rank, _IDLE)
            self._free.put_nowait(rank)

    async def _score_at(self, rank: int, reward: Spec, task: Task, response: str) -> RewardResult:
        """The answer of one worker, once the reward has been started in it."""
        while True:
            self._record(rank, "score")
            limit_s = self._limit_s(reward, task)
            result = await self.workers.at_within(limit_s, rank, LocalRewards.score_if_started, reward, task, response)
            if result is not None:
                return result
            self._record(rank, "start")
            try:
                failure = await self.workers.at(rank, LocalRewards.start_reward, reward)
            except TimedOut as error:
                return RewardResult.timeout(f"reward {reward.name!r}: {error}; raise rewards.start_timeout_s")
            if failure is not None:
                return failure

    def _limit_s(self, reward: Spec, task: Task) -> float | None:
        """The limit of a score: that of the workers, or what the reward's own limits on programs add up to."""
        limit_s = self.workers.timeout_s
        return limit_s if limit_s is None else max(limit_s, own_limit_s(reward, task))

    def _record(self, rank: int, activity: str) -> None:
        if self._activities:
            self._activities[rank].enter(activity)

    async def _stop_rewards(self, rank: int) -> None:
        with contextlib.suppress(WorkerDied):  # it is about to be killed anyway
            await self.workers.at(rank, LocalRewards.stop)
