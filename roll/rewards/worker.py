"""A process that does nothing but score."""

from __future__ import annotations

from roll.rewards.base import call
from roll.types import Call, Score, Task


class RewardWorker:
    """Scores one reply at a time, in the main thread of whatever process it lives in."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    async def score(self, reward: Call, task: Task, reply: str) -> Score:
        """As `call` has it."""
        return await call(reward, task, reply)
