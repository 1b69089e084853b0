"""The interface through which episodes get their rewards, and its implementation in the caller's process.

`roll.rollout.reward_pool` has the implementation over child processes, each of which holds a `LocalRewards`.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from roll.journal.store import Journal
from roll.rewards.base import RewardAdapter
from roll.rewards.result import RewardFault, RewardResult
from roll.types import Spec, Task


class RewardService(Protocol):
    """Scores responses with any reward; keeps one instance of each reward and its options per process."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def score(self, reward: Spec, task: Task, response: str) -> RewardResult:
        """The named reward of a response; raises `ConfigError` if there is no such reward."""
        ...

    def record_activity(self, journal: Journal) -> None:
        """From now on, record in the journal what each worker process is doing."""
        ...


class LocalRewards:
    """`RewardService` in the caller's thread: breakpoints work, and a reward that hangs blocks the caller.

    Starting a reward is a separate call, because it may take longer than a score may.
    """

    def __init__(self, rank: int = 0, *, max_retries: int = 0) -> None:
        self.rank, self.max_retries = rank, max_retries
        self._started: dict[str, RewardAdapter] = {}
        self._starting = asyncio.Lock()

    async def start(self) -> None: ...

    async def score(self, reward: Spec, task: Task, response: str) -> RewardResult:
        """The reward of `response`; the reward is started first if need be. Infrastructure failures are retried."""
        num_left = self.max_retries
        while True:
            adapter = self._started.get(_key(reward))
            result = await (self.start_reward(reward) if adapter is None else adapter.score(task, response))
            if result is None:
                continue  # the reward has been started
            if num_left <= 0 or result.fault is not RewardFault.INFRASTRUCTURE:
                return result
            num_left -= 1

    async def start_reward(self, reward: Spec) -> RewardResult | None:
        """Load and start the reward, unless that was done before; None, or the failure."""
        async with self._starting:
            if _key(reward) in self._started:
                return None
            adapter = RewardAdapter.load(reward)
            failure = await adapter.start()
            if failure is None:
                self._started[_key(reward)] = adapter
            return failure

    async def score_if_started(self, reward: Spec, task: Task, response: str) -> RewardResult | None:
        """The reward of `response`; None if the reward has not been started in this process."""
        adapter = self._started.get(_key(reward))
        return None if adapter is None else await adapter.score(task, response)

    async def stop(self) -> None:
        """Stop every reward, in reverse order of their starts."""
        while self._started:
            _, adapter = self._started.popitem()
            await adapter.stop()

    def record_activity(self, journal: Journal) -> None:
        """There are no workers: rewards count as the controller's time."""


def _key(reward: Spec) -> str:
    return repr(reward) if reward.kwargs else reward.name
