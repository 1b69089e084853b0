"""A custom environment: it sends letters, which the policy should repeat."""

import random

from roll.envs.base import StepResult
from roll.types import Message, Task


class Echo:
    """Sends one letter per turn; the final reward is the fraction of responses that start with their letter."""

    def __init__(self, task: Task, *, turns: int) -> None:
        self.letters = random.Random(task.seed).choices("abcdefgh", k=turns)
        self.num_turns = self.num_right = 0

    async def start(self) -> tuple[Message, ...]:
        return (Message("user", f"{self.letters[0]}?"),)

    async def step(self, response: str) -> StepResult:
        self.num_right += response.startswith(self.letters[self.num_turns])
        self.num_turns += 1
        if self.num_turns == len(self.letters):
            share = self.num_right / self.num_turns
            return StepResult(reward=share, done=True, metrics={"right": share})
        return StepResult(messages=(Message("user", f"{self.letters[self.num_turns]}?"),))

    async def close(self) -> None: ...
