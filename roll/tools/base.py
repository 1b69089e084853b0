"""The tool set protocol: schemas, and methods that run the tools for one attempt; counts of its calls and faults.

| call | waits for | woken by |
|---|---|---|
| `start` | the setup that the tools need | the set |
| `call` | the result of one tool | the tool, or cancellation |
| `close` | the release of its resources | the set |

A set is built as `Set(**arguments)`, serves one attempt, and is discarded with it. Resources that attempts can share,
such as an index, are shared inside the set. The text format of calls is in `roll.data.tools`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from roll.data.tools import CallFault, Tool


class ToolFault(StrEnum):
    """Why a valid call has no result."""

    FAILED = "failed"
    """It raised, or rejected its arguments."""
    TIMED_OUT = "timed_out"
    GONE = "gone"
    """A resource that it needs, such as a server, is gone."""


FAULTS = (*CallFault, *ToolFault)
"""Faults of the response, then faults of the tool."""


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


def text_tool(name: str, description: str, argument: str, meaning: str = "") -> Tool:
    """A tool whose only argument is a text; `meaning` describes it."""
    hint = {"type": "string", **({"description": meaning} if meaning else {})}
    return Tool(name, description, {"type": "object", "properties": {argument: hint}, "required": [argument]})


class ToolUsage:
    """Tool calls and faults of one attempt."""

    __slots__ = ("_faults", "_num_calls")

    def __init__(self) -> None:
        self._num_calls = 0
        self._faults: tuple[str, ...] = ()

    def count(self, num_calls: int, faults: Iterable[CallFault | ToolFault]) -> None:
        """Count one response: its parsed calls, and every fault of parsing or running them."""
        self._num_calls += num_calls
        self._faults += tuple(map(str, faults))

    def metrics(self) -> dict[str, float]:
        """Metrics as an environment reports them: totals of the attempt, including zeros."""
        by_kind = {f"tools/faults/{fault}": float(self._faults.count(str(fault))) for fault in FAULTS}
        return {"tools/calls": float(self._num_calls), "tools/faults": float(len(self._faults)), **by_kind}
