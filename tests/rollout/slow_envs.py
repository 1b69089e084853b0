"""An environment that takes its time, or its memory, as a task's metadata says."""

import asyncio
import time
from pathlib import Path

from roll.envs.base import StepResult
from roll.types import Message, Task

starting = 0
"""Environments of this process that are."""


class Slow:
    def __init__(self, task: Task) -> None:
        self.task, self.given = task, task.metadata
        self.held: list[bytearray] = []

    async def start(self) -> tuple[Message, ...]:
        global starting
        starting += 1
        try:
            self._note("starting", str(starting))
            await asyncio.sleep(self.given.get("start_s", 0.0))
        finally:
            starting -= 1
        return (Message("user", "5?"),)

    async def step(self, response: str) -> StepResult:
        time.sleep(self.given.get("block_s", 0.0))
        await asyncio.sleep(self.given.get("step_s", 0.0))
        if not self.held:
            self.held.append(bytearray(b"5") * (self.given.get("leak_mb", 0) * 2**20))
        return StepResult(messages=(Message("user", "5?"),))

    async def close(self) -> None:
        if "start_s" not in self.given or self.given["start_s"] > 1:
            self._note("closed", "")

    def _note(self, what: str, text: str) -> None:
        if "witness" in self.given and (what == "closed" or "start_s" in self.given):
            name = f"{self.task.id}-closed" if what == "closed" else self.task.id
            Path(self.given["witness"], name).write_text(text)
