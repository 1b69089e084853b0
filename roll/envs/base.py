"""What an environment is: it speaks first, answers each reply, and is thrown away after one attempt.

| call | waits for | woken by |
|---|---|---|
| `start` | whatever the environment sets up | the environment |
| `step` | its answer to one reply | the environment |
| `close` | the release of what it holds | the environment |

An environment is made as `Env(task, **arguments)` and used once: `start`, then `step` until `done`, then `close`. There
is no reset. All its randomness comes from `task.seed`, so siblings face the same world. Text goes in and out; it never
sees token ids.

An environment may have `tools`, JSON schemas of functions (`roll.data.tools`). The chat template tells the policy of
them, its replies are read in the form that the template teaches, and `call` gets them in place of `step`.

An environment may have `agents`, names of those who play in it; the first begins. Each `Reply` says `to` whom it is
said, and so who replies next. An agent hears nothing but what is said to it: the first that it hears is its opening,
rules and all. Each has segments, rewards and advantages of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from roll.data.tools import Spoken, Tool
from roll.types import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What an environment has to say to one reply of the policy."""

    messages: tuple[Message, ...] = ()
    """Shown to the policy before its next reply; after `done`, for the record only."""
    reward: float = 0.0
    """For this turn."""
    to: str = ""
    """The agent who hears this and replies next; empty: the one who has just replied."""
    rewards: dict[str, float] = field(default_factory=dict[str, float])
    """For other agents, by name: each is part of the last turn that agent took, or, before it took any, of its first.
    One who never replies earns nothing."""
    done: bool = False
    state: str = ""
    """Names the state the world is in now: alike for all attempts that have come to the same one. Empty: not said."""
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    """What was counted so far; the last reply's are the trajectory's."""


class ToolEnv(Protocol):
    """What an environment with tools has besides."""

    @property
    def tools(self) -> Sequence[Tool]: ...

    async def call(self, said: Spoken) -> Reply:
        """The answer to one reply whose calls were read; one that could not be read has a `fault`."""
        ...


class AgentsEnv(Protocol):
    """What an environment with several agents has besides."""

    @property
    def agents(self) -> Sequence[str]:
        """Who plays, the first being the one who begins; known once it has started."""
        ...


class Env(Protocol):
    """One attempt's world."""

    async def start(self) -> tuple[Message, ...]:
        """The opening messages. Called once, first."""
        ...

    async def step(self, reply: str) -> Reply:
        """The answer to one reply. Never called after `done`."""
        ...

    async def close(self) -> None:
        """Let go of everything; may be called at any time, and twice."""
        ...
