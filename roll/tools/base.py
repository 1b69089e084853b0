"""What a set of tools is: schemas, and something that runs them for one attempt.

| call | waits for | woken by |
|---|---|---|
| `start` | whatever the set needs before its tools are known | the set |
| `call` | the result of one tool | the tool; whoever cancels it |
| `close` | the release of what it holds | the set |

A set is made as `Set(**arguments)` by whoever needs it, belongs to one attempt, and is thrown away with it. What many
attempts can share, such as an index, it shares by itself. How a policy writes a call is not known here
(`roll.data.tools`), nor what a call is worth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from roll.data.tools import Tool


class ToolFault(StrEnum):
    """Why a tool that was called rightly gives no result."""

    FAILED = "failed"
    """It raised, or refused what it was given."""
    TIMED_OUT = "timed_out"
    GONE = "gone"
    """What it needs, such as a server, is not there any more."""


class ToolFailed(Exception):
    """Raised by a tool for the policy to read: the message is told to it."""

    def __init__(self, why: str, fault: ToolFault = ToolFault.FAILED) -> None:
        super().__init__(why)
        self.fault = fault


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one call, in words; with a fault, why nothing did."""

    text: str
    fault: ToolFault | None = None


class ToolSet(Protocol):
    """Some tools and what runs them."""

    @property
    def tools(self) -> Sequence[Tool]:
        """Those there are; a set that has to ask for them knows none before `start`."""
        ...

    async def start(self) -> None:
        """Called once, first."""
        ...

    async def call(self, name: str, arguments: dict[str, Any]) -> str:
        """The result in words; raises `ToolFailed`, or anything at all, where there is none."""
        ...

    async def close(self) -> None:
        """Let go of everything; may be called at any time, and twice."""
        ...
