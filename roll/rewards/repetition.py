"""Repetition: how much of a reply says what it has said already."""

from __future__ import annotations

from collections.abc import Sequence

from roll.errors import ConfigError
from roll.types import Score, Task

_LONGEST_RUN = 20


def score(task: Task, reply: str, *, n: int = 3, unit: str = "words") -> Score:
    """1 minus the share of runs of `n` words or characters that occurred before; 1 where there are fewer than two."""
    if unit not in ("words", "characters"):
        raise ConfigError(f"reward 'repetition': no unit named {unit!r}; write 'words' or 'characters'")
    if not 1 <= n <= _LONGEST_RUN:
        raise ConfigError(f"reward 'repetition': n is not 1 to {_LONGEST_RUN} (got {n}); change it")
    units: Sequence[str] = reply.split() if unit == "words" else reply
    num_runs = len(units) - n + 1
    if num_runs < 2:
        return Score(1.0)
    return Score(len(set(zip(*(units[start:] for start in range(n)), strict=False))) / num_runs)
