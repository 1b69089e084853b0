"""A regular expression: the reply matches the pattern, or it does not."""

from __future__ import annotations

from roll.errors import ConfigError
from roll.rewards.patterns import matches
from roll.types import Score, Task

_LONGEST = 1_000_000
"""Characters beyond which a reply matches nothing, so that no reply takes long."""


def score(task: Task, reply: str, *, pattern: str | None = None, whole: bool = False) -> Score:
    """1 if the pattern is found in the reply, or matches all of it if `whole`; else 0.

    The pattern is the task's own, its field `pattern`, where none is given. Lookarounds and backreferences are refused.
    """
    found: object = task.metadata.get("pattern") if pattern is None else pattern
    if not isinstance(found, str):
        raise ConfigError(f"task {task.id!r}: no pattern (got {found!r}); give the reward or the task a 'pattern'")
    return Score(float(matches(found, reply if len(reply) <= _LONGEST else "", whole=whole) and len(reply) <= _LONGEST))
