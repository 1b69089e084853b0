"""Where replies are scored: here, or in processes that can be killed when a reward never ends.

| call | waits for | woken by |
|---|---|---|
| `start` | every process | their first answer |
| `score` | a free worker, the reward's start in it, its answer | the answer; the limits of time; the worker's death |
| `stop` | the calls under way, the end of every reward | their answers, or their limits of time |
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from roll.cluster.processes import ProcessCluster, TimedOut
from roll.errors import WorkerDied
from roll.journal.activity import Activity
from roll.journal.records import IDLE
from roll.journal.store import Journal
from roll.rewards.outcome import Fault, Outcome
from roll.rewards.worker import RewardWorker, Unready
from roll.types import Call, Task

_NOTHING = f"{IDLE}replies"
Judge: TypeAlias = Callable[[Call, Task, str], Awaitable[Outcome]]
"""What the reward of that name thinks of a reply to a task; raises `ConfigError` where there is no such reward."""


class Scorer(Protocol):
    """Something with a lifetime that has a `Judge`. An instance of a reward lives as long as the worker it is in."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def score(self, reward: Call, task: Task, reply: str) -> Outcome: ...

    def write_down(self, journal: Journal) -> None:
        """From now on the journal is told what each worker does, where there are any."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class InlineRewards:
    """Scores in the caller's own thread: a breakpoint works, and what hangs, hangs."""

    max_retries: int
    worker: RewardWorker = field(default_factory=lambda: RewardWorker(0))

    async def start(self) -> None: ...

    async def stop(self) -> None:
        await self.worker.stop()

    async def score(self, reward: Call, task: Task, reply: str) -> Outcome:
        """A `Judge`; a failure of ours is tried again."""
        num_left = self.max_retries
        while True:
            made = self.worker.ready(reward)
            found = await (self.worker.start(reward) if made is None else made.score(task, reply))
            if found is None:
                continue  # it has just started
            if num_left <= 0 or found.fault is not Fault.INFRASTRUCTURE:
                return found
            num_left -= 1

    def write_down(self, journal: Journal) -> None:
        """There is no worker: what is computed here is the controller's time."""


@dataclass(slots=True, kw_only=True)
class RewardPool:
    """Processes that score. A failure of ours, such as a killed worker, is tried again and never becomes a score."""

    workers: ProcessCluster[RewardWorker]
    max_retries: int
    _free: asyncio.Queue[int] = field(default_factory=asyncio.Queue[int])
    """Ranks that nobody has; the one that has been idle longest is the next."""
    _activities: Sequence[Activity] = ()
    """Where it is written down what each worker does, if it is."""

    def __post_init__(self) -> None:
        for rank in range(self.workers.size):
            self._free.put_nowait(rank)

    async def start(self) -> None:
        await self.workers.start()

    def write_down(self, journal: Journal) -> None:
        """From now on the journal is told what each worker does."""
        self._activities = [Activity(journal, f"reward-{rank}") for rank in range(self.workers.size)]
        for rank in range(self.workers.size):
            self._tell(rank, _NOTHING)

    async def stop(self) -> None:
        try:
            await asyncio.gather(*(self._end(rank) for rank in self.workers.alive))
        finally:
            await self.workers.stop()

    async def score(self, reward: Call, task: Task, reply: str) -> Outcome:
        """A `Judge`: in the first process that is free, within the pool's limit of time."""
        return await _persistently(lambda: self._tried(reward, task, reply), self.max_retries)

    async def _tried(self, reward: Call, task: Task, reply: str) -> Outcome:
        place = f"reward {reward.name!r} on task {task.id!r}"
        try:
            return await self._asked(reward, task, reply)
        except TimedOut:
            limit_s = self.workers.limit_s
            return Outcome.timed_out(f"{place}: timed out after {limit_s:g} s and was killed; see why it hangs")
        except WorkerDied as error:
            return Outcome.failed(Fault.INFRASTRUCTURE, f"{place}: {error}; see what kills it")

    async def _asked(self, reward: Call, task: Task, reply: str) -> Outcome:
        """What the worker that is free first answers, once the reward has been started in it."""
        rank = await self._free.get()
        try:
            while isinstance(found := await self._at_work(rank, reward, task, reply), Unready):
                self._tell(rank, "start")
                try:
                    failed = await self.workers.at(rank, RewardWorker.start, reward)
                except TimedOut as error:
                    return Outcome.timed_out(f"reward {reward.name!r}: {error}; raise rewards.start_timeout_s")
                if failed is not None:
                    return failed
            return found
        finally:
            self._tell(rank, _NOTHING)
            self._free.put_nowait(rank)

    async def _at_work(self, rank: int, reward: Call, task: Task, reply: str) -> Outcome | Unready:
        self._tell(rank, "score")
        return await self.workers.at(rank, RewardWorker.score, reward, task, reply)

    def _tell(self, rank: int, doing: str) -> None:
        if self._activities:
            self._activities[rank].enter(doing)

    async def _end(self, rank: int) -> None:
        with contextlib.suppress(WorkerDied):  # it is about to be killed anyway
            await self.workers.at(rank, RewardWorker.stop)


async def _persistently(ask: Callable[[], Awaitable[Outcome]], max_retries: int) -> Outcome:
    """The first outcome that is no failure of ours, or the last there is."""
    for _ in range(max_retries):
        found = await ask()
        if found.fault is not Fault.INFRASTRUCTURE:
            return found
    return await ask()
