"""Exact match: the response equals the answer, ignoring surrounding whitespace."""

from __future__ import annotations

from typing import cast

from roll.errors import ConfigError
from roll.types import Score, Task


def score(task: Task, response: str) -> Score:
    """1 if the response equals the task's answer, or one of them if it is a list of aliases; else 0."""
    if task.answer is None:
        raise ConfigError(f"task {task.id!r}: no answer to compare with; give it one, or choose another reward")
    answer: object = task.answer
    aliases = cast(list[object], answer) if isinstance(answer, list) else [answer]
    return Score(float(response.strip() in [str(alias).strip() for alias in aliases]))
