"""The length of a response: 1 inside a range, decreasing outside of it."""

from __future__ import annotations

from roll.errors import ConfigError
from roll.types import Score, Task


def score(task: Task, response: str, *, high: int, low: int = 0, margin: int = 0, unit: str = "words") -> Score:
    """1 from `low` to `high` words or characters, inclusive; outside, it falls linearly to 0 at distance `margin`."""
    if unit not in ("words", "characters"):
        raise ConfigError(f"reward 'length': no unit named {unit!r}; write 'words' or 'characters'")
    if not 0 <= low <= high or margin < 0:
        raise ConfigError(
            f"reward 'length': not a range (got low {low}, high {high}, margin {margin}); order 0 <= low <= high"
        )
    count = len(response.split()) if unit == "words" else len(response)
    outside = max(low - count, count - high, 0)
    value = max(0.0, 1.0 - outside / margin) if margin else float(outside == 0)
    return Score(value, {unit: float(count)})
