"""Parse task rows and JSON files of environments into records."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import TypeVar

import msgspec

from roll.errors import ConfigError
from roll.types import Task

T = TypeVar("T")


def parse_row(task: Task, kind: type[T], name: str) -> T:
    """The task's answer and metadata as a record; ConfigError names the environment, the task and the field.

    `kind` is a `msgspec.Struct`; other fields of the row are ignored.
    """
    if not task.messages:
        raise ConfigError(f"{name}: task {task.id!r} has no question; give its row a 'prompt'")
    try:
        return msgspec.convert({**task.metadata, "answer": task.answer}, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{name}: task {task.id!r}: {error}; correct its row") from None


def read_json(path: str, kind: type[T], argument: str) -> T:
    """The content of a JSON file, gzipped or not, as `kind`; ConfigError names the file and the faulty field.

    `argument` is the environment's argument that names the file: `retail: database`.
    """
    try:
        raw = Path(path).read_bytes()
        return msgspec.json.decode(gzip.decompress(raw) if path.endswith(".gz") else raw, type=kind)
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"{argument}: {path} cannot be read ({error}); check the path") from None
    except msgspec.DecodeError as error:
        raise ConfigError(f"{argument}: {path}: {error}; correct the file") from None
