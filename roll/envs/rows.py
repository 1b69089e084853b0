"""What a task's row must hold, for environments that need more of it than a question."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from roll.errors import ConfigError
from roll.types import Task

T = TypeVar("T")


def row_of(task: Task, kind: type[T], name: str) -> T:
    """A task's answer and metadata as a record, or a ConfigError that names the environment, the task and the field.

    `kind` is a `msgspec.Struct`; fields that it does not have are left alone.
    """
    if not task.messages:
        raise ConfigError(f"{name}: task {task.id!r} does not say what to do; give its row a 'prompt'")
    try:
        return msgspec.convert({**task.metadata, "answer": task.answer}, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{name}: task {task.id!r}: {error}; correct its row") from None
