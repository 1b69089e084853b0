"""Whether a response matches a regular expression."""

from __future__ import annotations

from roll.errors import ConfigError
from roll.rewards.patterns import matches
from roll.types import Score, Task

_MAX_CHARS = 1_000_000
"""A longer response matches nothing, which bounds the time per response."""


def score(task: Task, response: str, *, pattern: str | None = None, whole: bool = False) -> Score:
    """1 if the pattern is found in the response, or matches all of it if `whole`; else 0.

    Without the option, the pattern is the task's field `pattern`. Lookarounds and backreferences are refused.
    """
    regex: object = task.metadata.get("pattern") if pattern is None else pattern
    if not isinstance(regex, str):
        raise ConfigError(f"task {task.id!r}: no pattern (got {regex!r}); give the reward or the task a 'pattern'")
    short = len(response) <= _MAX_CHARS
    return Score(float(matches(regex, response if short else "", whole=whole) and short))
