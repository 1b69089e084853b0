"""The environment protocol: it opens the conversation, responds to each model response, and serves one attempt.

| call | waits for | woken by |
|---|---|---|
| `start` | the environment's setup | the environment |
| `step` | its result for one response | the environment |
| `close` | the release of its resources | the environment |

An environment is built as `Env(task, **arguments)` and used once: `start`, then `step` until `done`, then `close`.
There is no reset. All its randomness comes from `task.seed`, so siblings face the same world. It handles text only,
never token ids.

An environment may have `tools`, JSON schemas of functions (`roll.data.tools`). The chat template shows them to the
policy, calls are parsed in the template's format, and the environment gets `call` instead of `step`.

An environment may have `agents`, a list of names; the first one starts. Each `StepResult` names in `to` the agent that
receives the messages and responds next. An agent sees only messages sent to it, so the first ones must include its
rules. Each agent has separate segments, rewards and advantages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from roll.data.tools import ParsedResponse, Tool
from roll.types import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The environment's result for one response."""

    messages: tuple[Message, ...] = ()
    """Shown to the policy before its next response; after `done`, only recorded."""
    reward: float = 0.0
    """For this turn."""
    to: str = ""
    """The agent that receives the messages and responds next; empty: the agent that has just responded."""
    rewards: dict[str, float] = field(default_factory=dict[str, float])
    """Rewards of other agents by name. Each is added to that agent's last turn, or to its first one if it has none yet.
    An agent that never responds earns nothing."""
    done: bool = False
    """Whether the attempt ends here."""
    state: str = ""
    """Identifies the current state of the world; equal for all attempts that reach the same state. Empty: unknown."""
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    """Metrics so far; those of the last step are the trajectory's."""


class ToolEnv(Protocol):
    """Additional members of an environment with tools."""

    @property
    def tools(self) -> Sequence[Tool]:
        """The functions that the policy may call."""
        ...

    async def call(self, response: ParsedResponse) -> StepResult:
        """The result for one response with parsed calls; a malformed response has a `fault`."""
        ...


class Env(Protocol):
    """The world of one attempt."""

    async def start(self) -> tuple[Message, ...]:
        """The opening messages. Called once, first."""
        ...

    async def step(self, response: str) -> StepResult:
        """The result for one response. Never called after `done`."""
        ...

    async def close(self) -> None:
        """Release all resources. May be called at any time, and twice."""
        ...


if not TYPE_CHECKING:  # a type checker reports unknown names itself

    def __getattr__(name: str) -> Any:
        if name == "Reply":
            use = "`step(self, response: str) -> StepResult`"
            raise ImportError(f"roll.envs.base has no 'Reply'; it is called StepResult: {use}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
