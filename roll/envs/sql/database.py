"""One in-memory database, writable by the policy: built from rows, with limits on each statement.

| limit | mechanism |
|---|---|
| time per statement | a callback every few thousand steps checks a step count and a clock |
| length of a value and of a statement, size of the database | limits of SQLite |
| files, other databases, settings, extensions, open transactions | rejected while a statement is prepared |
"""

from __future__ import annotations

import json
import random
import sqlite3
import time
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from roll.errors import ConfigError
from roll.tools.base import ToolFailed, ToolFault

_REFUSED = frozenset(
    {
        *(sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH, sqlite3.SQLITE_PRAGMA, sqlite3.SQLITE_TRANSACTION),
        *(sqlite3.SQLITE_SAVEPOINT, sqlite3.SQLITE_CREATE_VTABLE, sqlite3.SQLITE_DROP_VTABLE),
    }
)
_REFUSED_FUNCTIONS = frozenset({"load_extension", "fts3_tokenizer", "randomblob"})
_STRIDE = 10_000
"""SQLite virtual machine steps between two checks of the limits."""
_MOST_STRIDES = 1_000
_LONGEST = 100_000
"""Most bytes per value or statement."""
_MOST_PAGES = 1_024
"""Most pages of 4 KB."""


class SqlColumn(msgspec.Struct, frozen=True, kw_only=True):
    """A column of a table. Its values, not its declared type, decide how it is stored."""

    name: str
    type: str = "TEXT"


class TableInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Columns and rows of a table."""

    columns: Annotated[tuple[SqlColumn, ...], msgspec.Meta(min_length=1)]
    rows: tuple[tuple[str | int | float | None, ...], ...]


class SqlTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table in a task's row."""

    table_name: str
    table_info: TableInfo


class Database:
    """An in-memory database that runs single statements."""

    def __init__(self, tables: Sequence[SqlTable], *, where: str, seed: int = 0, statement_s: float = 1.0) -> None:
        self._tables, self._statement_s = tables, statement_s
        self._connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        draws = random.Random(seed)
        self._connection.create_function("random", 0, lambda: draws.randint(-(2**63), 2**63 - 1))
        try:
            for table in tables:
                self._create(table)
        except sqlite3.Error as error:
            raise ConfigError(f"{where}: its table cannot be created ({error}); correct its row") from None
        self._connection.execute(f"PRAGMA max_page_count = {_MOST_PAGES}")
        for limit in (sqlite3.SQLITE_LIMIT_LENGTH, sqlite3.SQLITE_LIMIT_SQL_LENGTH):
            self._connection.setlimit(limit, _LONGEST)
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 1_000)
        self._connection.set_authorizer(_authorize)

    def run(self, statement: str, *, max_rows: int) -> str:
        """The result of one statement: column names and rows as JSON lists, or the number of changed rows."""
        late = self._start_timer()
        try:
            cursor = self._connection.execute(statement)
            names = [column[0] for column in cursor.description or ()]
            rows = cursor.fetchmany(max_rows + 1) if names else []
            changed = cursor.rowcount
            cursor.close()
        except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError) as error:
            if late():
                why = f"the statement was stopped after {self._statement_s:g} s; it takes too long"
                raise ToolFailed(why, ToolFault.TIMED_OUT) from None
            raise ToolFailed(str(error)) from None
        if not names:
            return f"{changed} rows changed" if changed >= 0 else "done"
        more = [f"more than {max_rows} rows; the others are not shown"] if len(rows) > max_rows else []
        return "\n".join([_line(names), *(_line(row) for row in rows[:max_rows]), *more])

    def contents(self) -> str:
        """The content of all tables as text, independent of the order of rows; runs without limits."""
        self._connection.set_progress_handler(None, 0)
        return json.dumps([self._rows_of(table) for table in self._tables])

    def close(self) -> None:
        self._connection.close()

    def _create(self, table: SqlTable) -> None:
        info = table.table_info
        if any(len(row) != len(info.columns) for row in info.rows):
            raise sqlite3.DataError("a row has not as many values as there are columns")
        columns = [
            # NUMERIC if that stores the numbers without changing their text, so that 9 is less than 10
            f"{_quote_name(column.name)} {'NUMERIC' if all(_round_trips(row[index]) for row in info.rows) else 'TEXT'}"
            for index, column in enumerate(info.columns)
        ]
        self._connection.execute(f"CREATE TABLE {_quote_name(table.table_name)} ({', '.join(columns)})")
        marks = ", ".join("?" * len(columns))
        self._connection.executemany(f"INSERT INTO {_quote_name(table.table_name)} VALUES ({marks})", info.rows)

    def _rows_of(self, table: SqlTable) -> list[str] | None:
        """The rows as sorted text; None if the table is gone or has other columns."""
        names = ", ".join(_quote_name(column.name) for column in table.table_info.columns)
        try:
            rows = self._connection.execute(f"SELECT {names} FROM {_quote_name(table.table_name)}").fetchall()
        except sqlite3.Error:
            return None
        return sorted(json.dumps([None if value is None else str(value) for value in row]) for row in rows)

    def _start_timer(self) -> Any:
        """Start the limits of the next statement; returns a function that tells whether they were exceeded."""
        strides, until = 0, time.monotonic() + self._statement_s

        def late() -> bool:
            return strides > _MOST_STRIDES or time.monotonic() > until

        def look() -> bool:
            nonlocal strides
            strides += 1
            return late()

        self._connection.set_progress_handler(look, _STRIDE)
        return late


def _authorize(action: int, _: str | None, name: str | None, *__: str | None) -> int:
    if action in _REFUSED or (action == sqlite3.SQLITE_FUNCTION and (name or "").lower() in _REFUSED_FUNCTIONS):
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK


def _round_trips(value: Any) -> bool:
    if not isinstance(value, str):
        return True
    try:
        number = float(value)
    except ValueError:
        return True
    return value == (str(int(number)) if number.is_integer() and abs(number) < 1e15 else repr(number))


def _quote_name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _line(values: Sequence[Any]) -> str:
    return json.dumps(
        [f"{len(value)} bytes" if isinstance(value, bytes) else value for value in values], ensure_ascii=False
    )
