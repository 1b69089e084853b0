"""Checks of environment arguments that come from a config file."""

from __future__ import annotations

import math

from roll.errors import ConfigError


def check_number(name: str, value: object, low: float, high: float = math.inf, *, whole: bool = False) -> None:
    """Raise ConfigError unless `value` is a number from `low` to `high`; `name` is its full name: `sokoban: boxes`."""
    kind = int if whole else int | float
    if isinstance(value, kind) and not isinstance(value, bool) and low <= value <= high:
        return
    bounds = f"{low:g} or more" if high == math.inf else f"from {low:g} to {high:g}"
    raise ConfigError(f"{name} must be a {'whole ' if whole else ''}number, {bounds} (got {value!r}); change it")
