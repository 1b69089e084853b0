"""Three rewards of one's own: a function, one that waits, and one with a lifecycle."""

import asyncio
import sys
from pathlib import Path

from roll.types import Score, Task

PARSE = "import ast, sys; ast.parse(sys.stdin.read())"


def polite(task: Task, reply: str, *, words: list[str], longest: int = 200) -> Score:
    """1 if the reply has one of the words, less a tenth for every character beyond `longest`, down to 0."""
    courtesy = float(any(word in reply.lower() for word in words))
    excess = max(0, len(reply) - longest)
    return Score(max(0.0, courtesy - 0.1 * excess), {"courtesy": courtesy, "excess": float(excess)})


async def parses(task: Task, reply: str) -> float:
    """1 if the reply is Python, which another process finds out while this one waits."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-c", PARSE, stdin=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    await process.communicate(reply.encode())
    return float(process.returncode == 0)


class Vocabulary:
    """The part of a reply's words that stand in a file, which is read once in every process that scores."""

    def __init__(self, *, path: str) -> None:
        self.path = path
        self.known: frozenset[str] = frozenset()

    async def start(self) -> None:
        self.known = frozenset(Path(self.path).read_text(encoding="utf-8").split())

    async def stop(self) -> None:
        self.known = frozenset()

    def score(self, task: Task, reply: str) -> Score:
        words = reply.lower().split()
        return Score(sum(word in self.known for word in words) / max(1, len(words)), {"words": float(len(words))})
