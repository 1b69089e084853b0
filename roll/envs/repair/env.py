"""Software repair: the policy reads, edits, tests and submits a faulty program."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from roll.data.tools import ParsedResponse, Tool, ToolCall, parse_response
from roll.envs.base import StepResult
from roll.envs.inputs import check_number, parse_row
from roll.envs.repair.testing import FaultyProgram, run_tests
from roll.envs.turn_recorder import ToolTurnRecorder
from roll.sandbox.level import choose
from roll.tools.base import ToolFailed, ToolResult
from roll.types import Message, Task

_NOTHING: dict[str, Any] = {"type": "object", "properties": {}}
_LONGEST = 100_000
"""Most characters per file."""


def _texts(*names: str) -> dict[str, Any]:
    return {"type": "object", "properties": {name: {"type": "string"} for name in names}, "required": list(names)}


@dataclass(eq=False)
class Repair:
    """A faulty program to fix so that it does what the task's question says and passes its tests.

    The row has `buggy_code`, `entry_point` and `tests`, each with `args` and `expected`. Code runs in the sandbox,
    which never sees the expected values. Submitting ends the attempt with 1 if all tests pass, else 0; the last of
    `max_turns` responses ends it with 0.
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
    """Fraction of the tests that `run_tests` skips; they count on submission."""
    test_s: float = 1.0
    """CPU seconds per test."""
    timeout_s: float = 20.0
    """Wall-clock seconds for all tests together."""
    sandbox: str = "auto"
    """An option of `roll.sandbox.level`."""
    format_penalty: float = 0.0

    def __post_init__(self) -> None:
        check_number("repair: hidden", self.hidden, 0, 1)
        check_number("repair: test_s", self.test_s, 0.01)
        check_number("repair: timeout_s", self.timeout_s, 0.1)
        self._recorder = ToolTurnRecorder("repair", self.max_turns, self.format_penalty)
        self._program = parse_row(self.task, FaultyProgram, "repair")
        self._level = choose(self.sandbox)
        self._files = {self._program.file: self._program.buggy_code}
        self._hidden = _evenly_spaced(len(self._program.tests), self.hidden)

    async def start(self) -> tuple[Message, ...]:
        *before, last = self.task.messages
        name = self._program.entry_point
        instruction = (
            f"The function {name} in {self._program.file} should do this, and does not. Find the fault and mend it."
        )
        return (*before, Message(last.role, f"{last.content}\n\n{instruction} Call submit when you are done."))

    async def step(self, response: str) -> StepResult:
        return await self.call(parse_response(response, self.tools))

    async def call(self, response: ParsedResponse) -> StepResult:
        """The result for one response with parsed calls; calls after `submit` are ignored."""
        self._recorder.check_open()
        if not response.calls:
            return self._recorder.reject(response, self._world)
        results: list[ToolResult] = []
        reward = None
        for call in response.calls:
            if call.name == "submit":
                failing = [fault for fault in await self._run_tests(range(len(self._program.tests))) if fault]
                reward = float(not failing)
                results.append(ToolResult(f"{len(failing)} of {len(self._program.tests)} tests fail."))
                break
            results.append(await self._answer(call))
        return self._recorder.answer_calls(results, self._world, reward)

    async def close(self) -> None:
        self._recorder.done = True

    @property
    def _world(self) -> str:
        return json.dumps(self._files, sort_keys=True)

    async def _answer(self, call: ToolCall) -> ToolResult:
        try:
            if call.name == "list_files":
                return ToolResult(_list_files(self._files))
            if call.name == "read_file":
                return ToolResult(_number_lines(_text_of(self._files, **call.arguments)))
            if call.name == "run_tests":
                return ToolResult(await self._report())
            self._files = _replace_text(self._files, **call.arguments)
        except ToolFailed as failure:
            return failure.result()
        return ToolResult(f"{call.arguments['path']} is changed.")

    async def _run_tests(self, which: Iterable[int]) -> list[str]:
        cases = [self._program.tests[index] for index in which]
        return await run_tests(
            self._program, self._files, cases, self._level, test_s=self.test_s, timeout_s=self.timeout_s
        )

    async def _report(self) -> str:
        seen = [index for index in range(len(self._program.tests)) if index not in self._hidden]
        failures = await self._run_tests(seen) if seen else []
        calls = [self._program.call(self._program.tests[index]) for index in seen]
        lines = [f"{call}: {fault}" for call, fault in zip(calls, failures, strict=True) if fault]
        more = f" {len(self._hidden)} more are hidden." if self._hidden else ""
        return "\n".join([f"{len(seen) - len(lines)} of {len(seen)} tests pass.{more}", *lines])


def _evenly_spaced(count: int, part: float) -> frozenset[int]:
    """A fraction `part` of the numbers below `count`, evenly spaced."""
    return frozenset(index for index in range(count) if math.floor((index + 1) * part) > math.floor(index * part))


def _list_files(files: Mapping[str, str]) -> str:
    return "\n".join(f"{name} ({len(text.splitlines())} lines)" for name, text in sorted(files.items()))


def _number_lines(text: str) -> str:
    return "\n".join(f"{number:4}  {line}" for number, line in enumerate(text.splitlines(), start=1)) or "(empty)"


def _replace_text(files: Mapping[str, str], path: str, old: str, new: str) -> dict[str, str]:
    """The files with `old` replaced by `new` in one of them, where it must occur exactly once."""
    text = _text_of(files, path)
    count = text.count(old) if old else 0
    if count != 1:
        where = f"occurs {count} times in" if count else "is not in"
        raise ToolFailed(f"'old' {where} {path}; give text that occurs there exactly once, without line numbers")
    changed = text.replace(old, new)
    if len(changed) > _LONGEST:
        raise ToolFailed(f"{path} would have more than {_LONGEST} characters")
    try:
        changed.encode()
    except UnicodeEncodeError:
        raise ToolFailed("'new' contains half a character") from None
    return {**files, path: changed}


def _text_of(files: Mapping[str, str], path: str) -> str:
    if path not in files:
        raise ToolFailed(f"no file {path[:100]!r}; there are {', '.join(sorted(files))}")
    return files[path]
