"""Tasks from JSON lines, and seeds for environments that generate their own tasks."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, overload

from roll.config.sources import Fields
from roll.data.fields import PLAIN, tasks_from
from roll.errors import ConfigError
from roll.types import Task


def jsonl(path: str, fields: Fields = PLAIN) -> list[Task]:
    """The tasks of a `.jsonl` or `.jsonl.gz` file, one JSON object per line.

    A row has `prompt` (text) or `messages` (a list of role and content), and usually `answer`; `fields` maps other
    names. `id` and `seed` default to the line number, `domain` to the file name; all other fields are metadata. Blank
    lines are skipped.
    """
    file = Path(path)
    domain = file.name.removesuffix(".gz").removesuffix(".jsonl")
    return tasks_from(numbered_objects(file), fields, where=str(file), domain=domain, unit="line")


def numbered_objects(file: Path) -> Iterator[tuple[int, Any]]:
    """Number and JSON value of each line that is not blank; a ValueError as the value of a line with broken JSON."""
    return ((line, _parse(text)) for line, text in _lines(file))


class Seeds(Sequence[Task]):
    """Tasks that consist of a seed only, created on access."""

    def __init__(self, seeds: range, domain: str) -> None:
        self._seeds, self._domain = seeds, domain

    def within(self, domain: str) -> Seeds:
        """The same seeds as tasks of another domain."""
        return Seeds(self._seeds, domain)

    def __len__(self) -> int:
        return len(self._seeds)

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> list[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | list[Task]:
        if isinstance(index, slice):
            return [self._task(seed) for seed in self._seeds[index]]
        return self._task(self._seeds[index])

    def _task(self, seed: int) -> Task:
        return Task(id=f"seed-{seed}", domain=self._domain, seed=seed)


def seeds(count: int = 1_000_000, start: int = 0) -> Seeds:
    """Tasks for environments that generate themselves from a seed; use another `start` for held-out tasks."""
    if count < 1 or start < 0:
        raise ConfigError(f"seeds: needs count >= 1 and start >= 0 (got count {count}, start {start}); change them")
    return Seeds(range(start, start + count), "seeds")


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines that are not blank; ConfigError if the file cannot be read."""
    try:
        with gzip.open(file, "rt", encoding="utf-8") if file.suffix == ".gz" else file.open(encoding="utf-8") as stream:
            for line, text in enumerate(stream, start=1):
                if text.strip():
                    yield line, text.strip()
    except FileNotFoundError:
        raise ConfigError(f"{file}: no such file; check the path (it is relative to the current directory)") from None
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{file}: cannot be read ({error}); it must be UTF-8 text, or gzip if it ends in .gz"
        ) from None


def _parse(text: str) -> Any:
    """The JSON value of a line, or a ValueError as `tasks_from` expects it."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        return ValueError(f"broken JSON at column {error.colno} ({error.msg}); put one whole object on each line")
