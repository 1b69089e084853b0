"""SQL: a question about a table, or a change to make to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast

import msgspec

from roll.data.tools import ParsedResponse, Tool, ToolCall, parse_response
from roll.envs.base import StepResult
from roll.envs.inputs import check_number, parse_row
from roll.envs.sql.answers import same_answer, to_sqlite
from roll.envs.sql.database import Database, SqlTable, build_image
from roll.envs.sql.database_process import DatabaseProcess
from roll.envs.turn_recorder import ToolTurnRecorder
from roll.errors import ConfigError
from roll.tools.base import ToolFailed, ToolResult, text_tool
from roll.types import Message, Task


class SqlTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task's row: its tables and the right answer."""

    table: SqlTable | tuple[SqlTable, ...]
    answer: tuple[Any, ...]
    """The right values; with `check: state`, the statement that makes the change."""
    check: Literal["answer", "state"]
    add_description: str = ""
    """Text about the tables, shown before the question."""

    @property
    def tables(self) -> tuple[SqlTable, ...]:
        return self.table if isinstance(self.table, tuple) else (self.table,)


@dataclass(eq=False)
class SQL:
    """An in-memory database, a question, and tools to execute statements and to answer.

    The row has `table` (one or several), `answer` and `check`. With `check: answer` the answered values must equal
    `answer`. With `check: state` the tables must equal those after the statement in `answer`; the values do not matter.
    Answering ends the attempt with 1 or 0; the last of `max_turns` responses ends it with 0.
    """

    tools = (
        text_tool("execute_sql", "Executes one SQL statement (SQLite) and gives its rows.", "query"),
        Tool(
            "answer",
            "Answers with all values that were asked for, or with none after a change. This ends the attempt.",
            {"type": "object", "properties": {"values": {"type": "array"}}, "required": ["values"]},
        ),
    )

    task: Task
    max_turns: int = 15
    max_rows: int = 50
    """Most rows shown per result."""
    statement_s: float = 1.0
    """CPU seconds per statement."""
    format_penalty: float = 0.0

    def __post_init__(self) -> None:
        check_number("sql: max_rows", self.max_rows, 1, whole=True)
        check_number("sql: statement_s", self.statement_s, 0.001)
        self._recorder = ToolTurnRecorder("sql", self.max_turns, self.format_penalty)
        self._row = parse_row(self.task, SqlTask, "sql")
        answer = self._row.answer
        if self._row.check == "state" and not (len(answer) == 1 and isinstance(answer[0], str)):
            raise ConfigError(f"sql: task {self.task.id!r}: 'answer' is not one statement (got {answer!r}); give one")
        self._image = build_image(
            self._row.tables, where=f"sql: task {self.task.id!r}", seed=self.task.seed, statement_s=self.statement_s
        )
        self._database = DatabaseProcess(self._image)

    async def start(self) -> tuple[Message, ...]:
        *before, last = self.task.messages
        about = self._row.add_description
        return (*before, Message(last.role, f"{about}\n{last.content}" if about else last.content))

    async def step(self, response: str) -> StepResult:
        return await self.call(parse_response(response, self.tools))

    async def call(self, response: ParsedResponse) -> StepResult:
        """The result for one response with parsed calls; calls after `answer` are ignored."""
        self._recorder.check_open()
        if not response.calls:
            return self._recorder.reject(response, self._database.contents())
        results: list[ToolResult] = []
        reward = None
        for call in response.calls:
            if call.name == "answer":
                reward = float(self._is_correct(call.arguments["values"]))
                results.append(ToolResult("right" if reward else "wrong"))
                break
            results.append(await self._execute(call))
        return self._recorder.answer_calls(results, self._database.contents(), reward)

    async def close(self) -> None:
        self._recorder.done = True
        self._database.close()

    async def _execute(self, call: ToolCall) -> ToolResult:
        try:
            return ToolResult(await self._database.run(call.arguments["query"], max_rows=self.max_rows))
        except ToolFailed as failure:
            return failure.result()

    def _is_correct(self, values: Any) -> bool:
        if self._row.check == "answer":
            return same_answer(cast(list[Any], values), self._row.answer)
        other = Database(self._image)
        try:
            other.run(to_sqlite(self._row.answer[0]), max_rows=1)
            return other.contents() == self._database.contents()
        except ToolFailed as failure:
            raise ConfigError(f"sql: task {self.task.id!r}: its 'answer' cannot be executed ({failure})") from None
        finally:
            other.close()
