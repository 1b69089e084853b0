"""A faulty program is read, edited, tested, and handed in."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from roll.data.tools import Spoken, Tool, ToolCall, read
from roll.envs.arguments import check_number
from roll.envs.base import Reply
from roll.envs.calls import Books
from roll.envs.repair.examination import Bounds, Broken, faults
from roll.envs.repair.files import edited, listed, numbered
from roll.envs.rows import row_of
from roll.sandbox.level import choose
from roll.tools.base import Answer, ToolFailed
from roll.types import Message, Task

_NOTHING: dict[str, Any] = {"type": "object", "properties": {}}
_TEXT = {"type": "string"}


def _texts(*names: str) -> dict[str, Any]:
    return {"type": "object", "properties": dict.fromkeys(names, _TEXT), "required": list(names)}


@dataclass(eq=False)
class Repair:
    """A program that does not do what the task's question says, to be mended so that it passes its tests.

    The row has `buggy_code`, `entry_point` and `tests`, each with `args` and `expected`. What it runs, it runs in the
    sandbox, which never learns what is expected. Handing in ends the attempt with 1 if all tests pass, else 0; so does
    the last of `max_turns` replies, with 0.
    """

    tools = (
        Tool("list_files", "Names the files.", _NOTHING),
        Tool("read_file", "Shows a file with line numbers.", _texts("path")),
        Tool(
            "edit_file",
            "Replaces the text old by the text new in a file. What is old must stand there exactly once.",
            _texts("path", "old", "new"),
        ),
        Tool("run_tests", "Runs the tests that may be seen, and says which fail and how.", _NOTHING),
        Tool("submit", "Hands the files in as they are. This ends the attempt.", _NOTHING),
    )

    task: Task
    max_turns: int = 12
    hidden: float = 0.5
    """The part of the tests that `run_tests` does not run; they count when it is handed in."""
    test_s: float = 1.0
    """Seconds of the processor that one test may take."""
    timeout_s: float = 20.0
    """Seconds that all tests may take together."""
    sandbox: str = "auto"
    """An option of `roll.sandbox.level`."""
    format_penalty: float = 0.0

    def __post_init__(self) -> None:
        check_number("repair: hidden", self.hidden, 0, 1)
        check_number("repair: test_s", self.test_s, 0.01)
        check_number("repair: timeout_s", self.timeout_s, 0.1)
        self._books = Books("repair", self.max_turns, self.format_penalty)
        self._program = row_of(self.task, Broken, "repair")
        self._level = choose(self.sandbox)
        self._files = {self._program.file: self._program.buggy_code}
        self._bounds = Bounds(cpu_s=self.test_s, wall_s=self.timeout_s)
        self._hidden = _every(len(self._program.tests), self.hidden)

    async def start(self) -> tuple[Message, ...]:
        *before, last = self.task.messages
        name = self._program.entry_point
        asked = f"The function {name} in {self._program.file} should do this, and does not. Find the fault and mend it."
        return (*before, Message(last.role, f"{last.content}\n\n{asked} Call submit when you are done."))

    async def step(self, reply: str) -> Reply:
        return await self.call(read(reply, self.tools))

    async def call(self, said: Spoken) -> Reply:
        """The answer to one reply whose calls were read; those after a `submit` are left alone."""
        self._books.open()
        if not said.calls:
            return self._books.refused(said, self._world)
        answers: list[Answer] = []
        reward = None
        for call in said.calls:
            if call.name == "submit":
                failing = [fault for fault in await self._faults(range(len(self._program.tests))) if fault]
                reward = float(not failing)
                answers.append(Answer(f"{len(failing)} of {len(self._program.tests)} tests fail."))
                break
            answers.append(await self._answer(call))
        return self._books.answered(answers, self._world, reward)

    async def close(self) -> None:
        self._books.done = True

    @property
    def _world(self) -> str:
        return json.dumps(self._files, sort_keys=True)

    async def _answer(self, call: ToolCall) -> Answer:
        try:
            return Answer(await self._result(call))
        except ToolFailed as failure:
            return Answer(f"error: {failure}", failure.fault)

    async def _result(self, call: ToolCall) -> str:
        if call.name == "list_files":
            return listed(self._files)
        if call.name == "read_file":
            return numbered(self._files, call.arguments["path"])
        if call.name == "run_tests":
            return await self._report()
        given = call.arguments
        self._files = edited(self._files, given["path"], given["old"], given["new"])
        return f"{given['path']} is changed."

    async def _faults(self, which: range | list[int]) -> list[str]:
        cases = [self._program.tests[index] for index in which]
        return await faults(self._program, self._files, cases, self._bounds, self._level)

    async def _report(self) -> str:
        seen = [index for index in range(len(self._program.tests)) if index not in self._hidden]
        found = await self._faults(seen) if seen else []
        calls = [self._program.call(self._program.tests[index]) for index in seen]
        told = [f"{call}: {fault}" for call, fault in zip(calls, found, strict=True) if fault]
        more = f" {len(self._hidden)} more are hidden." if self._hidden else ""
        return "\n".join([f"{len(seen) - len(told)} of {len(seen)} tests pass.{more}", *told])


def _every(count: int, part: float) -> frozenset[int]:
    """So many of the first `count` numbers as `part` says, at equal distances."""
    return frozenset(index for index in range(count) if math.floor((index + 1) * part) > math.floor(index * part))
