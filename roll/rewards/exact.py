"""Exact match: the reply is the answer, spaces around it aside."""

from __future__ import annotations

from typing import cast

from roll.errors import ConfigError
from roll.types import Score, Task


def score(task: Task, reply: str) -> Score:
    """1 if the reply equals the task's answer, or one of them where it has a list of aliases; else 0."""
    if task.answer is None:
        raise ConfigError(f"task {task.id!r}: no answer to compare with; give it one, or choose another reward")
    answer: object = task.answer
    aliases = cast(list[object], answer) if isinstance(answer, list) else [answer]
    return Score(float(reply.strip() in [str(alias).strip() for alias in aliases]))
