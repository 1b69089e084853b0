"""A question about a table, or a change to make to it, by SQL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast

import msgspec

from roll.data.tools import Spoken, Tool, ToolCall, read
from roll.envs.arguments import check_number
from roll.envs.base import Reply
from roll.envs.calls import Books
from roll.envs.rows import row_of
from roll.envs.sql.compare import same_answer
from roll.envs.sql.database import Database, Table
from roll.envs.sql.mysql import in_sqlite
from roll.errors import ConfigError
from roll.tools.base import Answer, ToolFailed
from roll.types import Message, Task


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What a task's row says of its tables, and of what is to come of them."""

    table: Table | tuple[Table, ...]
    answer: tuple[Any, ...]
    """The values that are asked for; or, by `check`, the statement that makes the wanted change."""
    check: Literal["answer", "state"]
    add_description: str = ""
    """Words about the tables, told with the question."""

    @property
    def tables(self) -> tuple[Table, ...]:
        return self.table if isinstance(self.table, tuple) else (self.table,)


@dataclass(eq=False)
class SQL:
    """A database in memory, a question, and tools to execute statements and to answer.

    The row has `table` (or several), `answer` and `check`. With `check: answer` the values given have to be those of
    `answer`; with `check: state` the tables have to hold what they hold after the statement in `answer`, and any values
    will do. Answering ends the attempt with 1 or 0; so does the last of `max_turns` replies, with 0.
    """

    tools = (
        Tool(
            "execute_sql",
            "Executes one SQL statement (SQLite) and gives its rows.",
            {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
        ),
        Tool(
            "answer",
            "Answers with all values that were asked for, or with none after a change. This ends the attempt.",
            {"type": "object", "properties": {"values": {"type": "array"}}, "required": ["values"]},
        ),
    )

    task: Task
    max_turns: int = 15
    max_rows: int = 50
    """Of a result that are shown."""
    statement_s: float = 1.0
    """Seconds that one statement may take."""
    format_penalty: float = 0.0

    def __post_init__(self) -> None:
        check_number("sql: max_rows", self.max_rows, 1, whole=True)
        check_number("sql: statement_s", self.statement_s, 0.001)
        self._books = Books("sql", self.max_turns, self.format_penalty)
        self._wanted = row_of(self.task, Wanted, "sql")
        if self._wanted.check == "state":
            _statement(self._wanted, self.task)
        self._database = self._fresh()

    async def start(self) -> tuple[Message, ...]:
        *before, last = self.task.messages
        about = self._wanted.add_description
        return (*before, Message(last.role, f"{about}\n{last.content}" if about else last.content))

    async def step(self, reply: str) -> Reply:
        return await self.call(read(reply, self.tools))

    async def call(self, said: Spoken) -> Reply:
        """The answer to one reply whose calls were read; those after an `answer` are left alone."""
        self._books.open()
        if not said.calls:
            return self._books.refused(said, self._database.contents())
        answers: list[Answer] = []
        reward = None
        for call in said.calls:
            if call.name == "answer":
                reward = float(self._right(call.arguments["values"]))
                answers.append(Answer("right" if reward else "wrong"))
                break
            answers.append(self._executed(call))
        return self._books.answered(answers, self._database.contents(), reward)

    async def close(self) -> None:
        self._books.done = True
        self._database.close()

    def _fresh(self) -> Database:
        place = f"sql: task {self.task.id!r}"
        return Database(self._wanted.tables, place=place, seed=self.task.seed, statement_s=self.statement_s)

    def _executed(self, call: ToolCall) -> Answer:
        try:
            return Answer(self._database.run(call.arguments["query"], max_rows=self.max_rows))
        except ToolFailed as failure:
            return Answer(f"error: {failure}", failure.fault)

    def _right(self, values: Any) -> bool:
        if self._wanted.check == "answer":
            return same_answer(cast(list[Any], values), self._wanted.answer)
        other = self._fresh()
        try:
            other.run(_statement(self._wanted, self.task), max_rows=1)
            return other.contents() == self._database.contents()
        except ToolFailed as failure:
            raise ConfigError(f"sql: task {self.task.id!r}: its 'answer' cannot be executed ({failure})") from None
        finally:
            other.close()


def _statement(wanted: Wanted, task: Task) -> str:
    """The statement that makes the wanted change."""
    if len(wanted.answer) != 1 or not isinstance(wanted.answer[0], str):
        raise ConfigError(f"sql: task {task.id!r}: 'answer' is not one statement (got {wanted.answer!r}); give one")
    return in_sqlite(wanted.answer[0])
