"""An environment of one's own: it says letters and wants to hear them again."""

import random

from roll.envs.base import Reply
from roll.types import Message, Task


class Echo:
    """Says a letter each turn; the reward at the end is the part of them that a reply began with."""

    def __init__(self, task: Task, *, turns: int) -> None:
        self.letters = random.Random(task.seed).choices("abcdefgh", k=turns)
        self.num_heard = self.num_right = 0

    async def start(self) -> tuple[Message, ...]:
        return (Message("user", f"{self.letters[0]}?"),)

    async def step(self, reply: str) -> Reply:
        self.num_right += reply.startswith(self.letters[self.num_heard])
        self.num_heard += 1
        if self.num_heard == len(self.letters):
            share = self.num_right / self.num_heard
            return Reply(reward=share, done=True, metrics={"right": share})
        return Reply(messages=(Message("user", f"{self.letters[self.num_heard]}?"),))

    async def close(self) -> None: ...
