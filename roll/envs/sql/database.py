"""One database in memory, which anybody may write to: built from rows, bounded in what a statement may do.

| bound | how |
|---|---|
| time of a statement | its steps are counted, and a clock is looked at, every few thousand of them |
| length of a value and of a statement, size of the database | limits of SQLite |
| files, other databases, settings, extensions, open transactions | refused while a statement is being prepared |
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
"""Steps of SQLite's machine between two looks at what a statement has taken."""
_MOST_STRIDES = 1_000
_LONGEST = 100_000
"""Bytes of a value or a statement."""
_MOST_PAGES = 1_024
"""Of 4 KB each."""


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """A column of a table. Whatever its type is said to be, its values decide how it is kept."""

    name: str
    type: str = "TEXT"


class Info(msgspec.Struct, frozen=True, kw_only=True):
    """What is in a table."""

    columns: Annotated[tuple[Column, ...], msgspec.Meta(min_length=1)]
    rows: tuple[tuple[str | int | float | None, ...], ...]


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """A table of a task's row."""

    table_name: str
    table_info: Info


class Database:
    """Tables, and statements on them."""

    def __init__(self, tables: Sequence[Table], *, place: str, seed: int = 0, statement_s: float = 1.0) -> None:
        self._tables, self._statement_s = tables, statement_s
        self._link = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        draws = random.Random(seed)
        self._link.create_function("random", 0, lambda: draws.randint(-(2**63), 2**63 - 1))
        try:
            for table in tables:
                self._create(table)
        except sqlite3.Error as error:
            raise ConfigError(f"{place}: its table cannot be made ({error}); correct its row") from None
        self._link.execute(f"PRAGMA max_page_count = {_MOST_PAGES}")
        for limit in (sqlite3.SQLITE_LIMIT_LENGTH, sqlite3.SQLITE_LIMIT_SQL_LENGTH):
            self._link.setlimit(limit, _LONGEST)
        self._link.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 1_000)
        self._link.set_authorizer(_allowed)

    def run(self, statement: str, *, max_rows: int) -> str:
        """What one statement gives: names and rows, a JSON list each, or how many rows it changed."""
        late = self._timed()
        try:
            cursor = self._link.execute(statement)
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
        """All that the tables hold, as text that is the same whatever the order of the rows; for our eyes alone."""
        self._link.set_progress_handler(None, 0)
        return json.dumps([self._rows_of(table) for table in self._tables])

    def close(self) -> None:
        self._link.close()

    def _create(self, table: Table) -> None:
        info = table.table_info
        if any(len(row) != len(info.columns) for row in info.rows):
            raise sqlite3.DataError("a row has not as many values as there are columns")
        columns = [
            f"{_name(column.name)} {_kept_as([row[index] for row in info.rows])}"
            for index, column in enumerate(info.columns)
        ]
        self._link.execute(f"CREATE TABLE {_name(table.table_name)} ({', '.join(columns)})")
        marks = ", ".join("?" * len(columns))
        self._link.executemany(f"INSERT INTO {_name(table.table_name)} VALUES ({marks})", info.rows)

    def _rows_of(self, table: Table) -> list[str] | None:
        """None for a table that is not there any more, or has other columns."""
        names = ", ".join(_name(column.name) for column in table.table_info.columns)
        try:
            rows = self._link.execute(f"SELECT {names} FROM {_name(table.table_name)}").fetchall()
        except sqlite3.Error:
            return None
        return sorted(json.dumps([None if value is None else str(value) for value in row]) for row in rows)

    def _timed(self) -> Any:
        """Bounds the next statement; what is returned says whether it went over."""
        strides, until = 0, time.monotonic() + self._statement_s

        def late() -> bool:
            return strides > _MOST_STRIDES or time.monotonic() > until

        def look() -> bool:
            nonlocal strides
            strides += 1
            return late()

        self._link.set_progress_handler(look, _STRIDE)
        return late


def _allowed(action: int, _: str | None, name: str | None, *__: str | None) -> int:
    if action in _REFUSED or (action == sqlite3.SQLITE_FUNCTION and (name or "").lower() in _REFUSED_FUNCTIONS):
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK


def _kept_as(values: Sequence[Any]) -> str:
    """NUMERIC where numbers can be kept as such and still read as they were written, so that 9 is less than 10."""
    return "NUMERIC" if all(_unchanged(value) for value in values) else "TEXT"


def _unchanged(value: Any) -> bool:
    if not isinstance(value, str):
        return True
    try:
        number = float(value)
    except ValueError:
        return True
    return value == (str(int(number)) if number.is_integer() and abs(number) < 1e15 else repr(number))


def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _line(values: Sequence[Any]) -> str:
    return json.dumps(
        [f"{len(value)} bytes" if isinstance(value, bytes) else value for value in values], ensure_ascii=False
    )
