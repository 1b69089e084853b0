"""Environments in which two agents talk; a module that processes import quickly."""

from collections.abc import Sequence
from typing import Any

from roll.envs.base import StepResult
from roll.types import Message, Task


class Talk:
    """Two who talk in turn; what is said to each, and what both earn, is in a list."""

    agents: Any = ("ann", "bob")
    said: Sequence[StepResult] = (
        StepResult(messages=(Message("user", "b"),), to="bob", state="one"),
        StepResult(messages=(Message("user", "c"),), to="ann", reward=0.25, rewards={"ann": 1.0}, state="two"),
        StepResult(messages=(Message("user", "d"),), to="bob", reward=-0.5, state="three"),
        StepResult(
            messages=(Message("user", "e"),), reward=2.0, rewards={"ann": -4.0}, done=True, metrics={"success": 1.0}
        ),
    )

    def __init__(self, task: Task) -> None:
        self._turn = 0

    async def start(self) -> tuple[Message, ...]:
        return (Message("user", "a"),)

    async def step(self, response: str) -> StepResult:
        self._turn += 1
        return self.said[self._turn - 1]

    async def close(self) -> None: ...


class Silent(Talk):
    """The second earns before it ever speaks; in the second turn it does."""

    said = (
        StepResult(messages=(Message("user", "b"),), to="ann", rewards={"bob": 3.0}),
        StepResult(messages=(Message("user", "c"),), to="bob"),
        StepResult(messages=(Message("user", "d"),), reward=1.0, done=True),
    )


class Never(Silent):
    """The second earns and never speaks."""

    said = (StepResult(messages=(Message("user", "d"),), reward=1.0, rewards={"bob": 3.0}, done=True),)


class Stranger(Talk):
    """Speaks to someone who does not play."""

    said = (StepResult(messages=(Message("user", "b"),), to="eve"),)


class Twins(Talk):
    """Two agents of one name."""

    agents = ("ann", "ann")


class Numbers(Talk):
    """Agents without names."""

    agents = (1, 2)
