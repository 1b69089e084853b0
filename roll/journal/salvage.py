"""Copies the rows of a journal that can be read into a new one, so that a damaged journal can still be shown."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from roll.errors import ConfigError
from roll.journal.database import connect
from roll.journal.events import KINDS
from roll.journal.packing import unpack

Row = tuple[Any, ...]
_TABLES = ("events", "trajectories", "bodies", "step_groups", "progress", "token_values", "spans", "durable")
_PAGE = 256
_HIGHEST = 2**62
"""Above all ids."""


@dataclass(slots=True)
class SalvageCounts:
    """The extent of the damage."""

    num_rows: int = 0
    """Rows copied."""
    lost: list[str] = field(default_factory=list[str])
    """Ranges of ids without readable rows, by table."""


def copy_readable(source: Path, target: Path) -> SalvageCounts:
    """Copy all readable rows of the journal `source` to the new file `target`; `source` is only read."""
    counts = SalvageCounts()
    with closing(connect(source, write=False)) as damaged, closing(connect(target, write=True)) as copy:
        copy.execute("BEGIN")
        for table in _TABLES:
            for row in _Rows(damaged, table, counts.lost):
                try:
                    _check(table, row)
                    copy.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)
                except Exception as error:  # noqa: BLE001 - any content is possible in a damaged row
                    counts.lost.append(f"{table} {row[0]} ({type(error).__name__})")
                else:
                    counts.num_rows += 1
        copy.execute("COMMIT")
    if not counts.num_rows:
        raise ConfigError(f"{source}: no row of the journal can be read; copy it back from a backup")
    return counts


def _check(table: str, row: Row) -> None:
    """Raise any error if the content of a row cannot be decoded."""
    if table == "events":
        msgspec.json.decode(row[6], type=KINDS[row[2]])
    elif table == "bodies":
        unpack(row[1])


class _Rows:
    """The readable rows of a table in order of their ids; notes the ranges that are not readable."""

    def __init__(self, connection: sqlite3.Connection, table: str, lost: list[str]) -> None:
        self._connection, self._table, self._lost = connection, table, lost

    def __iter__(self) -> Iterator[Row]:
        after = -1
        while True:
            rows, complete = self._read(after, _PAGE)
            yield from rows
            if rows:
                after = rows[-1][0]
            elif complete:
                return
            if not complete:
                start, after = after, self._skip(after)
                end = "" if after >= _HIGHEST else str(after)
                self._lost.append(f"{self._table} {start + 1}-{end}")

    def _read(self, after: int, most: int) -> tuple[list[Row], bool]:
        """Rows with higher ids, and whether reading them worked to the end."""
        rows: list[Row] = []
        query = f"SELECT * FROM {self._table} NOT INDEXED WHERE id > ? ORDER BY id LIMIT {most}"
        try:
            for row in self._connection.execute(query, (after,)):
                rows.append(row)
        except sqlite3.DatabaseError:
            return rows, False
        return rows, True

    def _skip(self, after: int) -> int:
        """The lowest id above `after` behind which rows can be read again; `_HIGHEST` if there is none."""
        return _first(lambda number: self._read(number, 1)[1], after + 1)


def _first(succeeds: Callable[[int], bool], start: int) -> int:
    """The lowest number from `start` that succeeds, found by doubling steps and bisection."""
    low, step = start, 1
    while start + step < _HIGHEST and not succeeds(start + step):
        low, step = start + step, 2 * step
    high = min(start + step, _HIGHEST)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if succeeds(middle) else (middle, high)
    return high
