"""The tool set protocol: schemas, and methods that run the tools for one attempt.

| call | waits for | woken by |
|---|---|---|
| `start` | the setup that the tools need | the set |
| `call` | the result of one tool | the tool, or cancellation |
| `close` | the release of its resources | the set |

A set is built as `Set(**arguments)`, serves one attempt, and is discarded with it. Resources that attempts can share,
such as an index, are shared inside the set. The text format of calls is in `roll.data.tools`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from roll.data.tools import Tool


class ToolFault(StrEnum):
    """Why a valid call has no result."""

    FAILED = "failed"
    """It raised, or rejected its arguments."""
    TIMED_OUT = "timed_out"
    GONE = "gone"
    """A resource that it needs, such as a server, is gone."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of one call as text; with a fault, the reason why there is none."""

    text: str
    fault: ToolFault | None = None


class ToolFailed(Exception):
    """Raised by a tool; the policy sees the message."""

    def __init__(self, why: str, fault: ToolFault = ToolFault.FAILED) -> None:
        super().__init__(why)
        self.fault = fault

    def result(self) -> ToolResult:
        return ToolResult(f"error: {self}", self.fault)


class ToolSet(Protocol):
    """A set of tools and the code that runs them."""

    @property
    def tools(self) -> Sequence[Tool]:
        """The tools; a set that must query them has none before `start`."""
        ...

    async def start(self) -> None:
        """Called once, first."""
        ...

    async def call(self, name: str, arguments: dict[str, Any]) -> str:
        """The result as text; raises `ToolFailed`, or any other exception, if there is none."""
        ...

    async def close(self) -> None:
        """Release all resources. May be called at any time, and twice."""
        ...
