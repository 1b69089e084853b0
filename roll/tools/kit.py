"""Several sets of tools as one: made from names, called by name, and whatever goes wrong comes back in words.

| what a tool does | what becomes of it |
|---|---|
| it raises `ToolFailed`, or anything else | an `Answer` with that fault, told to the policy |
| it takes longer than `timeout_s` | it is cancelled; an `Answer` with the fault `timed_out` |
| it says more than `most_chars` | the middle is left out, and that is said |
| its sandbox fails, which is nobody's fault in the attempt | raised: the attempt has failed, and is made again |
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, cast

from roll.data.tools import Tool, ToolCall, declared
from roll.errors import ConfigError, RolloutError
from roll.registry import TOOLS
from roll.tools.base import Answer, ToolFailed, ToolFault, ToolSet
from roll.tools.function import FunctionTool


class Kit:
    """All tools of one attempt."""

    def __init__(self, named: Sequence[Any], *, timeout_s: float = 30.0, most_chars: int = 4000) -> None:
        """`named` are names of the table, or of one's own as `package.module:attribute`, or those with arguments."""
        self._timeout_s, self._most_chars = timeout_s, most_chars
        self._sets = [_made(each, f"tools.{index}") for index, each in enumerate(named)]
        self._owners: dict[str, ToolSet] = {}

    @property
    def tools(self) -> tuple[Tool, ...]:
        """Of all sets, in their order; before `start` as far as they are known."""
        return declared([tool for each in self._sets for tool in each.tools])

    async def start(self) -> None:
        """Start every set; what cannot start raises, and is left to `close`."""
        for each in self._sets:
            await each.start()
            self._owners |= {tool.name: each for tool in each.tools}

    async def answer(self, call: ToolCall) -> Answer:
        """What came of one call."""
        limit = asyncio.timeout(self._timeout_s)
        try:
            async with limit:
                text = await self._owners[call.name].call(call.name, call.arguments)
        except ToolFailed as failure:
            return self._failed(str(failure), failure.fault)
        except TimeoutError as error:
            if limit.expired():
                return self._failed(f"{call.name} gave no answer within {self._timeout_s:g} s", ToolFault.TIMED_OUT)
            return self._failed(f"{type(error).__name__}: {error}")
        except RolloutError:
            raise
        except Exception as error:  # noqa: BLE001 - a tool's code is anybody's, and what it raises is for the policy
            return self._failed(f"{type(error).__name__}: {error}")
        return Answer(self._shown(text))

    async def close(self) -> None:
        """Close every set, whatever becomes of the others; raises what the last of them raised."""
        sets, self._sets = self._sets, []
        async with contextlib.AsyncExitStack() as closing:
            for each in sets:
                closing.push_async_callback(each.close)

    def _failed(self, why: str, fault: ToolFault = ToolFault.FAILED) -> Answer:
        return Answer(self._shown(f"error: {why}"), fault)

    def _shown(self, text: Any) -> str:
        """Text that a tokenizer can read, and not too much of it."""
        plain = str(text).encode(errors="replace").decode()
        over = len(plain) - self._most_chars
        if over <= 0:
            return plain
        half = self._most_chars // 2
        return f"{plain[:half]}\n[{over} characters left out]\n{plain[len(plain) - (self._most_chars - half) :]}"


def _made(given: Any, place: str) -> ToolSet:
    """The set that an entry names: a class of sets, or a function that is a tool by itself."""
    plain: dict[str, Any] = {"kind": given} if isinstance(given, str) else {}
    if isinstance(given, Mapping):
        plain = dict(cast(Mapping[str, Any], given))
    kind = plain.pop("kind", None)
    if not isinstance(kind, str):
        raise ConfigError(f"{place}: names no tools (got {given!r}); write a name, or {{kind: name, ...}}")
    found = TOOLS[kind]
    try:
        return found(**plain) if isinstance(found, type) else FunctionTool(found, plain)
    except TypeError as error:
        raise ConfigError(f"{place}: {kind!r} cannot be made ({error}); change its arguments") from error
