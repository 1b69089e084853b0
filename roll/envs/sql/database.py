"""One in-memory database, writable by the policy: built from rows, with limits on each statement.

| limit | mechanism |
|---|---|
| CPU time per statement | a callback every few thousand steps checks a step count and a clock |
| CPU time of one step | `roll.envs.sql.database_process`: the process is killed |
| length of a value and of a statement, size of the database | limits of SQLite |
| files, other databases, settings, extensions, open transactions | rejected while a statement is prepared |
"""

from __future__ import annotations

import contextlib
import json
import random
import sqlite3
import time
from collections.abc import Callable, Sequence
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
_LONGEST_RESULT = 10_000_000
CONTENTS_S = 2.0
"""CPU seconds to read the tables, which may have become views."""


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


class DatabaseImage(msgspec.Struct, frozen=True, kw_only=True):
    """A database before its first statement. A process opens it as a `Database`."""

    data: bytes
    layout: tuple[tuple[str, tuple[str, ...]], ...]
    """The names of the tables and of their columns."""
    seed: int
    """Of SQL's `random`."""
    statement_s: float


def build_image(tables: Sequence[SqlTable], *, where: str, seed: int = 0, statement_s: float = 1.0) -> DatabaseImage:
    """The database of a row; a `ConfigError` names the row if it cannot be created."""
    layout = tuple((table.table_name, tuple(column.name for column in table.table_info.columns)) for table in tables)
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        try:
            for table in tables:
                _create(connection, table)
        except sqlite3.Error as error:
            raise ConfigError(f"{where}: its table cannot be created ({error}); correct its row") from None
        return DatabaseImage(data=connection.serialize(), layout=layout, seed=seed, statement_s=statement_s)


class Database:
    """An in-memory database that runs single statements in this process."""

    def __init__(self, image: DatabaseImage) -> None:
        self._image = image
        self._connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self._connection.deserialize(image.data)
        self._draws = random.Random()
        self._connection.create_function("random", 0, lambda: self._draws.randint(-(2**63), 2**63 - 1))
        self._connection.execute(f"PRAGMA max_page_count = {_MOST_PAGES}")
        self._connection.execute("PRAGMA temp_store = MEMORY")
        for limit in (sqlite3.SQLITE_LIMIT_LENGTH, sqlite3.SQLITE_LIMIT_SQL_LENGTH):
            self._connection.setlimit(limit, _LONGEST)
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 1_000)
        self._connection.set_authorizer(_authorize)

    def run(self, statement: str, *, max_rows: int, number: int = 0) -> str:
        """The result of one statement: column names and rows as JSON lists, or the number of changed rows.

        Its number in the attempt decides what SQL's `random` gives.
        """
        self._draws.seed(f"{self._image.seed}/{number}")
        late = self._start_timer(self._image.statement_s)
        try:
            cursor = self._connection.execute(statement)
            names = [column[0] for column in cursor.description or ()]
            rows = _fetch(cursor, max_rows + 1) if names else []
            changed = cursor.rowcount
            cursor.close()
        except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError) as error:
            if late():
                raise ToolFailed(too_long(self._image.statement_s), ToolFault.TIMED_OUT) from None
            raise ToolFailed(str(error)) from None
        if not names:
            return f"{changed} rows changed" if changed >= 0 else "done"
        more = [f"more than {max_rows} rows; the others are not shown"] if len(rows) > max_rows else []
        return "\n".join([_line(names), *(_line(row) for row in rows[:max_rows]), *more])

    def contents(self) -> str:
        """The content of all tables as text, independent of the order of rows."""
        self._start_timer(CONTENTS_S)
        return json.dumps([self._rows_of(name, columns) for name, columns in self._image.layout])

    def close(self) -> None:
        self._connection.close()

    def _rows_of(self, table: str, columns: Sequence[str]) -> list[str] | None:
        """The rows as sorted text; None if the table is gone, has other columns, or takes too long to read."""
        names = ", ".join(map(_quote_name, columns))
        try:
            rows = self._connection.execute(f"SELECT {names} FROM {_quote_name(table)}").fetchall()
        except sqlite3.Error:
            return None
        return sorted(json.dumps([None if value is None else str(value) for value in row]) for row in rows)

    def _start_timer(self, limit_s: float) -> Callable[[], bool]:
        """Start the limits of the next statement; returns a function that tells whether they were exceeded."""
        strides, until = 0, time.thread_time() + limit_s

        def late() -> bool:
            return strides > _MOST_STRIDES or time.thread_time() > until

        def look() -> bool:
            nonlocal strides
            strides += 1
            return late()

        self._connection.set_progress_handler(look, _STRIDE)
        return late


def too_long(limit_s: float) -> str:
    """The message about a statement that was stopped."""
    return f"the statement was stopped after {limit_s:g} s; it takes too long"


def _create(connection: sqlite3.Connection, table: SqlTable) -> None:
    info = table.table_info
    if any(len(row) != len(info.columns) for row in info.rows):
        raise sqlite3.DataError("a row has not as many values as there are columns")
    columns = [
        # NUMERIC if that stores the numbers without changing their text, so that 9 is less than 10
        f"{_quote_name(column.name)} {'NUMERIC' if all(_round_trips(row[index]) for row in info.rows) else 'TEXT'}"
        for index, column in enumerate(info.columns)
    ]
    connection.execute(f"CREATE TABLE {_quote_name(table.table_name)} ({', '.join(columns)})")
    marks = ", ".join("?" * len(columns))
    connection.executemany(f"INSERT INTO {_quote_name(table.table_name)} VALUES ({marks})", info.rows)


def _fetch(cursor: sqlite3.Cursor, most: int) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    length = 0
    while len(rows) < most and (row := cursor.fetchone()) is not None:
        rows.append(row)
        length += sum(len(value) for value in row if isinstance(value, str | bytes))
        if length > _LONGEST_RESULT:
            raise sqlite3.DataError("the result is too long")
    return rows


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
