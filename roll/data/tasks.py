"""Where tasks come from: a file of them, or nothing but seeds for environments that make their own."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, overload

from roll.data.fields import PLAIN, Fields, tasks_from
from roll.errors import ConfigError
from roll.types import Task


def jsonl(path: str, fields: Fields = PLAIN) -> list[Task]:
    """The tasks of a `.jsonl` or `.jsonl.gz` file, one JSON object a line.

    A row has `prompt` (text) or `messages` (a list of role and content) and, as a rule, `answer`, unless `fields` says
    what it calls them. `id` and `seed` default to the line number, `domain` to the file's name; every other field is
    metadata. Blank lines are skipped.
    """
    file = Path(path)
    domain = file.name.removesuffix(".gz").removesuffix(".jsonl")
    return tasks_from(numbered_objects(file), fields, place=str(file), domain=domain, unit="line")


def numbered_objects(file: Path) -> Iterator[tuple[int, Any]]:
    """What stands on each line that is not blank, with its number; where that is no JSON, a ValueError that says so."""
    return ((line, _parsed(text)) for line, text in _lines(file))


class Seeds(Sequence[Task]):
    """Tasks that are nothing but a seed, made when asked for."""

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
    """Tasks for environments that make their own world from a seed; hold some out with another `start`."""
    if count < 1 or start < 0:
        raise ConfigError(f"seeds: needs count >= 1 and start >= 0 (got count {count}, start {start}); change them")
    return Seeds(range(start, start + count), "seeds")


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines that are not blank; a file that cannot be read is the user's to fix."""
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


def _parsed(text: str) -> Any:
    """The value on a line; where there is none, the fault as `tasks_from` takes it."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        return ValueError(f"broken JSON at column {error.colno} ({error.msg}); put one whole object on each line")
