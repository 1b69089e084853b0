"""Custom rewards: a function, one with rewards of steps, an async function, and a class with a lifecycle."""

import asyncio
import re
import sys
from pathlib import Path

from roll.types import Score, Span, Task

PARSE = "import ast, sys; ast.parse(sys.stdin.read())"


def polite(task: Task, response: str, *, words: list[str], longest: int = 200) -> Score:
    """1 if the response has one of the words, minus 0.1 per character beyond `longest`, at least 0."""
    courtesy = float(any(word in response.lower() for word in words))
    excess = max(0, len(response) - longest)
    return Score(max(0.0, courtesy - 0.1 * excess), {"courtesy": courtesy, "excess": float(excess)})


def sums(task: Task, response: str) -> Score:
    """1 if the response ends with the answer; 0.1 for each sum in it that is right, -0.1 for each that is wrong."""
    spans = [
        Span(step.start(), step.end(), 0.1 if int(step[1]) + int(step[2]) == int(step[3]) else -0.1)
        for step in re.finditer(r"([0-9]{1,9}) \+ ([0-9]{1,9}) = ([0-9]{1,9})", response)
    ]
    return Score(float(response.endswith(str(task.answer))), spans=tuple(spans))


async def parses(task: Task, response: str) -> float:
    """1 if the response is valid Python, checked by another process."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-c", PARSE, stdin=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    await process.communicate(response.encode())
    return float(process.returncode == 0)


class Vocabulary:
    """The fraction of a response's words that are in a file, which is read once per worker process."""

    def __init__(self, *, path: str) -> None:
        self.path = path
        self.known: frozenset[str] = frozenset()

    async def start(self) -> None:
        self.known = frozenset(Path(self.path).read_text(encoding="utf-8").split())

    async def stop(self) -> None:
        self.known = frozenset()

    def score(self, task: Task, response: str) -> Score:
        words = response.lower().split()
        return Score(sum(word in self.known for word in words) / max(1, len(words)), {"words": float(len(words))})
