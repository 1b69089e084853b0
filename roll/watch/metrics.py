"""The metrics of a run as columns, read from `metrics.jsonl` as it grows, and downsampled series.

A series has a cursor. A request with the cursor of an earlier answer gets the points since then: the first of them
replaces the point that was incomplete at that time.
"""

from __future__ import annotations

import json
import math
import secrets
import threading
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from roll.errors import ConfigError

Column = NDArray[np.float64]
ReadColumn = Callable[[str], Column | None]
"""The values of a metric in the rows of a request; None for a metric that no line has."""
MAX_SERIES = 200
"""Most series of one answer."""
_MOST_SELECTED = 16
_OTHER = "time/other"
"""The part of `time/step` that no phase covers; computed here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesQuery:
    """Which metrics to show, over which steps, with how many points."""

    names: tuple[str, ...]
    """Names of metrics; `*` matches any text."""
    points: int = 500
    first: float = -math.inf
    last: float = math.inf
    cursor: str = ""
    """Of an earlier answer to the same query, without `first` and `last`; only newer points are wanted."""

    def __post_init__(self) -> None:
        if not 10 <= self.points <= 5000:
            raise ConfigError(f"points: expected 10 to 5000 (got {self.points}); change it")


class MetricColumns:
    """All steps of a metrics file; `update` reads what was appended since the last call. Any thread may use it."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        self._reset()

    def _reset(self) -> None:
        self._identity, self._offset = 0, 0
        self._epoch = secrets.token_hex(4)
        self._steps, self._times, self._tokens = array("q"), array("d"), array("d")
        self._columns: dict[str, array[float]] = {}
        self._last: dict[str, tuple[int, float]] = {}
        self._selected: dict[tuple[str, ...], list[str]] = {}
        """Names that the patterns of recent requests match; forgotten when a metric is new."""

    def update(self) -> bool:
        """Read new lines; whether there were any, or a resume has removed some."""
        try:
            stat = self._path.stat()
        except FileNotFoundError:
            return False
        with self._lock:
            replaced = self._identity not in (0, stat.st_ino) or stat.st_size < self._offset
            if replaced:
                self._reset()
            self._identity = stat.st_ino
            if stat.st_size == self._offset:
                return replaced
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
            complete = data.rfind(b"\n") + 1  # a line that is being written has no end yet
            self._offset += complete
            for line in data[:complete].splitlines():
                self._add(line)
            return complete > 0

    def _add(self, line: bytes) -> None:
        try:
            parsed: Any = json.loads(line)
            values = cast(dict[str, Any], parsed)
            step, time = int(values.pop("step")), float(values.pop("time", math.nan))
        except (ValueError, KeyError, AttributeError, TypeError):
            return  # `roll report` names the line; the other lines are still worth showing
        num_before = len(self._steps)
        self._steps.append(step)
        self._times.append(time)
        self._tokens.append((self._tokens[-1] if self._tokens else 0.0) + _finite(values.get("tokens/generated")))
        for name, value in values.items():
            if isinstance(value, int | float):
                column = self._columns.get(name)
                if column is None:
                    column, self._selected = self._columns.setdefault(name, array("d")), {}
                if len(column) < num_before:
                    column.extend([math.nan] * (num_before - len(column)))
                column.append(value)
                if math.isfinite(value):
                    self._last[name] = step, float(value)

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def names(self) -> list[str]:
        """Names of all metrics."""
        return [*self._columns]

    def last(self) -> dict[str, tuple[int, float]]:
        """Step and value of the last finite value of each metric."""
        with self._lock:
            return dict(self._last)

    def last_step(self) -> int | None:
        """Step of the last line; None without lines."""
        return self._steps[-1] if self._steps else None

    def wall_s(self) -> float:
        """Seconds from the first to the last line."""
        with self._lock:
            return self._times[-1] - self._times[0] if self._times else 0.0

    def edges(self, name: str, most: int) -> tuple[list[float], list[float]]:
        """The first and the last finite values of a metric: at most this many, and at most half of all."""
        with self._lock:
            column = self._columns.get(name, array("d"))
            first, last = ([*islice(filter(math.isfinite, each), 2 * most)] for each in (column, reversed(column)))
        number = min(most, -(-len(first) // 2))
        return first[:number], last[:number][::-1]

    def column(self, name: str) -> Column:
        """The values of one metric, one per line; NaN where a line lacks it."""
        with self._lock:
            values = self._column(name, 0)
            return np.full(len(self._steps), np.nan) if values is None else values

    def _column(self, name: str, start: int) -> Column | None:
        """The values of one metric from a line on."""
        column = self._columns.get(name)
        if column is None:
            return None
        values = np.full(len(self._steps) - start, np.nan)
        known = column[start:]
        values[: len(known)] = known
        return values

    def rows(self) -> tuple[Column, Column]:
        """Step and time of each line."""
        with self._lock:
            return np.array(self._steps, np.float64), np.array(self._times)

    def series(self, query: SeriesQuery, error_of: Callable[[str, ReadColumn], Column | None]) -> dict[str, Any]:
        """The series of a query as plain values; `error_of` gives the standard errors of a metric, one per row.

        `from` is the index of the first point that is returned: 0, or that of the first new one.
        """
        with self._lock:
            num_lines = len(self._steps)
            chosen = self._chosen(query)
            bucket = max(1, -(-(num_lines if chosen is None else int(chosen.sum())) // query.points))
            point = self._first_new(query.cursor, bucket) if chosen is None else 0
            start = point * bucket

            def read(name: str) -> Column | None:
                values = self._column(name, start)
                return values if values is None or chosen is None else values[chosen]

            columns = {name: values for name in self.select(query.names) if (values := read(name)) is not None}
            if _OTHER in query.names and "time/step" in self._columns:
                phases = {name: read(name) for name in self.select(("time/*",))}
                columns[_OTHER] = other_time({name: each for name, each in phases.items() if each is not None})
            errors = {name: error_of(name, read) for name in columns}
            rows = (np.array(each[start:], np.float64) for each in (self._steps, self._times, self._tokens))
            steps, times, tokens = rows if chosen is None else (each[chosen] for each in rows)
        return {
            "cursor": f"{self._epoch}-{num_lines}-{bucket}",
            "from": point,
            "bucket": bucket,
            "step": [int(step) for step in _ends(steps, bucket)],
            "time": plain(_ends(times, bucket)),
            "tokens": plain(_ends(tokens, bucket)),
            "series": _points(columns, errors, bucket),
        }

    def _chosen(self, query: SeriesQuery) -> NDArray[np.bool_] | None:
        """The lines within the limits of a query; None for all."""
        if query.first == -math.inf and query.last == math.inf:
            return None
        steps = np.array(self._steps, np.float64)
        return (steps >= query.first) & (steps <= query.last)

    def _first_new(self, cursor: str, bucket: int) -> int:
        """The first point that an answer with this cursor lacks or has in part; 0 if it shows anything else."""
        epoch, _, rest = cursor.partition("-")
        num_lines, _, known = rest.partition("-")
        if epoch != self._epoch or known != str(bucket) or not num_lines.isdecimal():
            return 0
        return min(int(num_lines), len(self._steps)) // bucket

    def select(self, patterns: Iterable[str]) -> list[str]:
        """Names that a pattern matches, in the order of the patterns."""
        key = tuple(patterns)
        if key not in self._selected:
            chosen: dict[str, None] = {}
            for pattern in key:
                chosen |= dict.fromkeys(name for name in self._columns if name == pattern or fnmatchcase(name, pattern))
            self._selected = (
                {key: [*chosen][:MAX_SERIES]}
                if len(self._selected) > _MOST_SELECTED
                else {**self._selected, key: [*chosen][:MAX_SERIES]}
            )
        return self._selected[key]


def other_time(columns: Mapping[str, Column]) -> Column:
    """Seconds of each step that are in no phase."""
    total = columns.get("time/step", np.zeros(0))
    phases = [np.nan_to_num(column) for name, column in columns.items() if name != "time/step"]
    return total - np.sum(phases, axis=0) if phases and len(total) else total


def _finite(value: Any) -> float:
    """The number; 0 for anything else."""
    return value if isinstance(value, int | float) and math.isfinite(value) else 0.0


def plain(values: Column) -> list[float | None]:
    """The numbers as a list; those that are not finite are None."""
    return [value if math.isfinite(value) else None for value in values.tolist()]


def _ends(values: Column, bucket: int) -> Column:
    """The last value of each bucket."""
    if bucket == 1 or not len(values):
        return values
    ends = np.arange(bucket - 1, len(values) + bucket - 1, bucket)
    return values[np.minimum(ends, len(values) - 1)]


def _points(columns: Mapping[str, Column], errors: Mapping[str, Column | None], bucket: int) -> dict[str, Any]:
    """Mean and extremes of each bucket, and the standard error of the mean, by metric; computed for all at once."""
    if not columns:
        return {}
    cells = _cells([*columns.values()], bucket)
    known = np.isfinite(cells)
    count = known.sum(axis=2)
    parts = {"mean": _divide(np.where(known, cells, 0.0).sum(axis=2), count)}
    if bucket > 1:
        parts["low"] = np.where(count > 0, np.where(known, cells, np.inf).min(axis=2), np.nan)
        parts["high"] = np.where(count > 0, np.where(known, cells, -np.inf).max(axis=2), np.nan)
    lists = {part: [plain(row) for row in rows] for part, rows in parts.items()}
    joined = {
        name: _joined_error(_cells([each], bucket)[0], known[index])
        for index, name in enumerate(columns)
        if (each := errors[name]) is not None
    }
    return {
        name: {
            "mean": lists["mean"][index],
            "low": lists["low"][index] if bucket > 1 else None,
            "high": lists["high"][index] if bucket > 1 else None,
            "error": plain(joined[name]) if name in joined else None,
        }
        for index, name in enumerate(columns)
    }


def _joined_error(errors: Column, known: NDArray[np.bool_]) -> Column:
    """Standard error of the mean of independent values."""
    valid = known & np.isfinite(errors)
    count = valid.sum(axis=1)
    return _divide(np.sqrt(np.where(valid, np.nan_to_num(errors) ** 2, 0.0).sum(axis=1)), count)


def _divide(total: Column, count: NDArray[np.int64]) -> Column:
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _cells(columns: Sequence[Column], bucket: int) -> NDArray[np.float64]:
    """[columns, buckets, bucket], filled up with NaN."""
    length = len(columns[0])
    num_buckets = -(-length // bucket)
    cells = np.full((len(columns), num_buckets * bucket), np.nan)
    cells[:, :length] = columns
    return cells.reshape(len(columns), num_buckets, bucket)
