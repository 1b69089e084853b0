"""A process that does nothing but score."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from roll.rewards.base import Reward
from roll.rewards.outcome import Outcome
from roll.types import Call, Task


@dataclass(frozen=True, slots=True)
class Unready:
    """The reward has not been started in the worker of this rank; nothing was asked."""

    rank: int


class RewardWorker:
    """Scores in the main thread of whatever process it lives in; keeps one instance of each reward with its options.

    Starting is a call of its own, because it may rightly take longer than a score may.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._ready: dict[str, Reward] = {}
        self._starting = asyncio.Lock()

    async def start(self, reward: Call) -> Outcome | None:
        """Make the reward and start it, unless it runs already; None, or why it could not."""
        async with self._starting:
            if _key(reward) in self._ready:
                return None
            made = Reward.made(reward)
            failed = await made.start()
            if failed is None:
                self._ready[_key(reward)] = made
            return failed

    async def score(self, reward: Call, task: Task, reply: str) -> Outcome | Unready:
        """What the reward thinks of `reply`."""
        made = self.ready(reward)
        return Unready(self.rank) if made is None else await made.score(task, reply)

    def ready(self, reward: Call) -> Reward | None:
        """The reward, if it has been started."""
        return self._ready.get(_key(reward))

    async def stop(self) -> None:
        """Let every reward end, the last started first."""
        while self._ready:
            _, made = self._ready.popitem()
            await made.stop()


def _key(reward: Call) -> str:
    return repr(reward) if reward.arguments else reward.name
