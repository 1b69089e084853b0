"""All tools of one attempt: built from names, called by name, with every failure returned as text.

| tool | outcome |
|---|---|
| raises `ToolFailed`, or any other exception | a `ToolResult` with that fault, shown to the policy |
| takes longer than `timeout_s` | cancelled; a `ToolResult` with the fault `timed_out` |
| returns more than `most_chars` | shortened in the middle, with a note |
| its sandbox fails, which the policy did not cause | raised: the attempt fails and is retried |
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, cast

from roll.data.tools import Tool, ToolCall, parse_tools
from roll.errors import ConfigError, RolloutError
from roll.registry import TOOLS
from roll.tools.base import ToolFailed, ToolFault, ToolResult, ToolSet
from roll.tools.function import FunctionTool


class Toolkit:
    """All tools of one attempt."""

    def __init__(self, named: Sequence[Any], *, timeout_s: float = 30.0, most_chars: int = 4000) -> None:
        """`named` are names of the table, or `package.module:attribute`, or mappings of these with arguments."""
        self._timeout_s, self._most_chars = timeout_s, most_chars
        self._sets = [_build_set(each, f"tools.{index}") for index, each in enumerate(named)]
        self._owners: dict[str, ToolSet] = {}

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools of all sets, in order; before `start`, those known so far."""
        return parse_tools([tool for each in self._sets for tool in each.tools])

    async def start(self) -> None:
        """Start every set; a failure raises and leaves the rest to `close`."""
        for each in self._sets:
            await each.start()
            self._owners |= {tool.name: each for tool in each.tools}

    async def run(self, call: ToolCall) -> ToolResult:
        """The result of one call."""
        limit = asyncio.timeout(self._timeout_s)
        try:
            async with limit:
                text = await self._owners[call.name].call(call.name, call.arguments)
        except ToolFailed as failure:
            return self._failure(str(failure), failure.fault)
        except RolloutError:
            raise
        except Exception as error:  # noqa: BLE001 - a tool may raise anything, and the policy sees it
            if isinstance(error, TimeoutError) and limit.expired():
                return self._failure(f"{call.name} gave no answer within {self._timeout_s:g} s", ToolFault.TIMED_OUT)
            return self._failure(f"{type(error).__name__}: {error}")
        return ToolResult(self._shorten(text))

    async def close(self) -> None:
        """Close every set, even if others fail; raises the last error."""
        sets, self._sets = self._sets, []
        async with contextlib.AsyncExitStack() as closing:
            for each in sets:
                closing.push_async_callback(each.close)

    def _failure(self, why: str, fault: ToolFault = ToolFault.FAILED) -> ToolResult:
        return ToolResult(self._shorten(f"error: {why}"), fault)

    def _shorten(self, text: Any) -> str:
        """Text that UTF-8 can encode, of at most `most_chars` characters plus a note."""
        plain = str(text).encode(errors="replace").decode()
        over = len(plain) - self._most_chars
        if over <= 0:
            return plain
        half = self._most_chars // 2
        return f"{plain[:half]}\n[{over} characters left out]\n{plain[len(plain) - (self._most_chars - half) :]}"


def _build_set(entry: Any, where: str) -> ToolSet:
    """The set that an entry names: a class of sets, or a function used as a tool."""
    plain: dict[str, Any] = {"kind": entry} if isinstance(entry, str) else {}
    if isinstance(entry, Mapping):
        plain = dict(cast(Mapping[str, Any], entry))
    kind = plain.pop("kind", None)
    if not isinstance(kind, str):
        raise ConfigError(f"{where}: names no tools (got {entry!r}); write a name, or {{kind: name, ...}}")
    factory = TOOLS[kind]
    try:
        return factory(**plain) if isinstance(factory, type) else FunctionTool(factory, plain)
    except TypeError as error:
        raise ConfigError(f"{where}: {kind!r} cannot be built ({error}); change its arguments") from error
