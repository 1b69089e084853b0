"""Checks of the arguments, task rows and files that an environment is built from."""

from __future__ import annotations

import gzip
import hashlib
import math
import zlib
from pathlib import Path
from typing import Literal, TypeVar, get_args

import msgspec

from roll.errors import ConfigError, UnknownName
from roll.types import Task

T = TypeVar("T")
Split = Literal["all", "train", "held_out"]
"""Which generated worlds an environment uses."""
_SPLITS = get_args(Split)


def check_number(name: str, value: object, low: float, high: float = math.inf, *, whole: bool = False) -> None:
    """Raise ConfigError unless `value` is a number from `low` to `high`; `name` is its full name: `sokoban: boxes`."""
    kind = int if whole else int | float
    if isinstance(value, kind) and not isinstance(value, bool) and low <= value <= high:
        return
    bounds = f"{low:g} or more" if high == math.inf else f"from {low:g} to {high:g}"
    raise ConfigError(f"{name} must be a {'whole ' if whole else ''}number, {bounds} (got {value!r}); change it")


def in_split(world: str, split: str) -> bool:
    """Whether a world, given as text, belongs to the split; a hash of the world holds out a quarter of all worlds."""
    if split not in _SPLITS:
        raise UnknownName("split", split, _SPLITS)
    held_out = hashlib.blake2b(world.encode(), digest_size=8).digest()[0] < 64
    return split == "all" or held_out == (split == "held_out")


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
