"""The environment for verifiable rewards: asks the task's question and ends with the first response."""

from __future__ import annotations

from roll.envs.base import StepResult
from roll.types import Message, Task

_OVER = StepResult(done=True)


class SingleTurn:
    """Opens with the task's messages; a reward function scores the response."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._done = False

    async def start(self) -> tuple[Message, ...]:
        return self._task.messages

    async def step(self, response: str) -> StepResult:
        assert not self._done, f"task {self._task.id!r}: stepped after done; an environment is single-use"
        self._done = True
        return _OVER

    async def close(self) -> None:
        self._done = True
