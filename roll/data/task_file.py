"""JSON lines: an iterator over all lines, and a large file as a sequence of tasks that reads a row when it is drawn."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, overload

import numpy as np

from roll.config.sources import Fields
from roll.data.fields import task_from
from roll.errors import ConfigError
from roll.types import Task

LARGE = 10_000
"""Most rows of a file that the start of a run reads whole."""
NUM_CHECKED = 1_000
"""Rows of a larger file that the start of a run reads; the others are read when drawn."""
_CHUNK = 1 << 22
_NEWLINE, _SPACE = 10, 32

Indices = np.ndarray[Any, np.dtype[np.int64]]


def numbered_objects(file: Path) -> Iterator[tuple[int, Any]]:
    """Number and JSON value of each line that is not blank; a ValueError as the value of a line with broken JSON."""
    reader = gzip.open if file.suffix == ".gz" else open
    with _reading(file), reader(file, "rt", encoding="utf-8-sig", newline="\n") as stream:
        for line, text in enumerate(stream, start=1):
            if text.strip():
                yield line, _parse(text)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TaskFile(Sequence[Task]):
    """The tasks of a `.jsonl` file, read and validated on access. Only the offsets of its lines are in memory.

    An invalid row, or one with the id of another row that was read, raises `ConfigError` on access.
    """

    file: Path
    fields: Fields
    domain: str
    """Domain of rows that name none."""
    starts: Indices
    """Offset of every line, and the size of the file."""
    lines: Indices
    """The line of each task, counted from 0."""
    stamp: tuple[int, int]
    """Size and time of the last change, from when the file was indexed."""
    source: str | None = None
    """Domain of all tasks; None: that of the row."""
    first_lines: dict[str, int] = field(default_factory=dict[str, int])
    """Line number of each id that was read."""

    def within(self, source: str) -> TaskFile:
        """The same rows as tasks of another domain."""
        return replace(self, source=source)

    def select(self, indices: Sequence[int]) -> TaskFile:
        """The tasks at these indices."""
        return replace(self, lines=self.lines[np.array(indices, np.int64)])

    @property
    def checked(self) -> list[Task]:
        """The tasks that the start of a run reads."""
        return list(self[:NUM_CHECKED])

    def __len__(self) -> int:
        return len(self.lines)

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> TaskFile: ...
    def __getitem__(self, index: int | slice) -> Task | TaskFile:
        if isinstance(index, slice):
            return replace(self, lines=self.lines[index])
        with self._open() as stream:
            return self._read(stream, int(self.lines[index]))

    def __iter__(self) -> Iterator[Task]:
        with self._open() as stream:
            for line in self.lines:
                yield self._read(stream, int(line))

    def _open(self) -> IO[bytes]:
        with _reading(self.file):
            stream = self.file.open("rb")
        if _stamp(stream) != self.stamp:
            stream.close()
            raise ConfigError(f"{self.file}: was changed after the run had started; start or resume the run again")
        return stream

    def _read(self, stream: IO[bytes], line: int) -> Task:
        begin, number = int(self.starts[line]), line + 1
        stream.seek(begin)
        try:
            row = _parse(_decode(stream.read(int(self.starts[number]) - begin), begin))
            if isinstance(row, ValueError):
                raise row
            task = task_from(row, self.fields, number=number, domain=self.domain)
            if (first := self.first_lines.setdefault(task.id, number)) != number:
                raise ValueError(f"id {task.id!r} is that of line {first}; give each its own")
        except ValueError as fault:
            raise ConfigError(f"{self.file}:{number}: {fault}") from None
        return task if self.source is None else replace(task, domain=self.source)


def index_file(file: Path, fields: Fields, *, domain: str, chunk: int = _CHUNK) -> TaskFile:
    """The tasks of an uncompressed file, after one pass over its bytes in chunks that decodes no row."""
    with _reading(file), file.open("rb") as stream:
        stamp = _stamp(stream)
        starts, candidates = _line_starts(stream, chunk)
        bounds = np.append(starts, stamp[0])
        blank = [line for line in candidates if _is_blank(stream, int(bounds[line]), int(bounds[line + 1]))]
    lines = np.delete(np.arange(len(starts)), blank)
    return TaskFile(file=file, fields=fields, domain=domain, starts=bounds, lines=lines, stamp=stamp)


@contextmanager
def _reading(file: Path) -> Generator[None]:
    """Raises faults of the file system or the encoding as `ConfigError`."""
    try:
        yield
    except FileNotFoundError:
        raise ConfigError(f"{file}: no such file; check the path (it is relative to the current directory)") from None
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{file}: cannot be read ({error}); it must be UTF-8 text, or gzip if it ends in .gz"
        ) from None


def _line_starts(stream: IO[bytes], size: int) -> tuple[Indices, list[int]]:
    """The offset of every line, and the lines that begin with a space and may be blank."""
    starts: list[Indices] = [np.zeros(0, np.int64)]
    candidates: list[int] = []
    offset, num_lines, last = 0, 0, _NEWLINE
    while chunk := stream.read(size):
        content = np.frombuffer(chunk, np.uint8)
        begins = np.flatnonzero(content[:-1] == _NEWLINE) + 1  # a line begins after the newline of another
        if last == _NEWLINE:
            begins = np.append(0, begins)
        candidates += (num_lines + np.flatnonzero(content[begins] <= _SPACE)).tolist()
        starts.append(begins + offset)
        offset, num_lines, last = offset + len(chunk), num_lines + len(begins), chunk[-1]
    return np.concatenate(starts), candidates


def _is_blank(stream: IO[bytes], begin: int, end: int) -> bool:
    stream.seek(begin)
    return not stream.read(end - begin).strip()


def _stamp(stream: IO[bytes]) -> tuple[int, int]:
    status = os.fstat(stream.fileno())
    return status.st_size, status.st_mtime_ns


def _decode(line: bytes, offset: int) -> str:
    try:
        return line.decode("utf-8" if offset else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 text ({error.reason} at byte {error.start + 1}); save the file as UTF-8") from None


def _parse(text: str) -> Any:
    """The JSON value of a line; a ValueError as the value of broken JSON."""
    try:
        return json.loads(text.strip())
    except json.JSONDecodeError as error:
        return ValueError(f"broken JSON at column {error.colno} ({error.msg}); put one whole object on each line")
    except (ValueError, RecursionError) as error:  # thousands of digits or levels
        return ValueError(f"cannot be read ({str(error).partition(';')[0]}); shorten the number or the nesting")
