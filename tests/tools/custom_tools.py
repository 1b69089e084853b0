"""Custom tools, well-behaved and not."""

import asyncio
from typing import Any

from roll.data.tools import Tool
from roll.sandbox.base import SandboxFailed
from roll.tools.base import ToolFailed, ToolFault


def double(number: int, times: int = 1) -> int:
    """Doubles a number, again and again."""
    return number * 2**times


async def hangs() -> str:
    """Never answers."""
    await asyncio.sleep(3600)
    return "late"


def raises(word: str) -> str:
    """Raises."""
    raise KeyError(word)


async def waits_in_vain() -> str:
    """Raises TimeoutError itself."""
    raise TimeoutError("the other side")


def babbles() -> str:
    """Returns too much text, with a lone surrogate."""
    return "\ud800" + "a" * 600 + "b" * 600


def breaks() -> str:
    """Has no sandbox to run in."""
    raise SandboxFailed("sandbox: no room")


class Diary:
    """A set of two tools, which remembers what was done to it."""

    closed = 0

    def __init__(self, *, owner: str) -> None:
        self.owner, self.lines = owner, list[str]()
        self.tools = (
            Tool("note", "", {"type": "object", "properties": {"line": {"type": "string"}}, "required": ["line"]}),
            Tool("burn", "", {"type": "object", "properties": {}}),
        )

    async def start(self) -> None:
        self.lines.append(f"diary of {self.owner}")

    async def call(self, name: str, arguments: dict[str, Any]) -> str:
        if name == "burn":
            raise ToolFailed("ashes", ToolFault.GONE)
        self.lines.append(arguments["line"])
        return "\n".join(self.lines)

    async def close(self) -> None:
        Diary.closed += 1
