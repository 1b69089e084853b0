"""Repetition: the fraction of a response that repeats earlier text."""

from __future__ import annotations

from collections.abc import Sequence

from roll.errors import ConfigError
from roll.types import Score, Task

_MAX_N = 20


def score(task: Task, response: str, *, n: int = 3, unit: str = "words") -> Score:
    """1 minus the share of n-grams of words or characters that occurred before; 1 with fewer than two n-grams."""
    if unit not in ("words", "characters"):
        raise ConfigError(f"reward 'repetition': no unit named {unit!r}; write 'words' or 'characters'")
    if not 1 <= n <= _MAX_N:
        raise ConfigError(f"reward 'repetition': n is not 1 to {_MAX_N} (got {n}); change it")
    units: Sequence[str] = response.split() if unit == "words" else response
    num_ngrams = len(units) - n + 1
    if num_ngrams < 2:
        return Score(1.0)
    return Score(len(set(zip(*(units[start:] for start in range(n)), strict=False))) / num_ngrams)
