"""Arguments of environments that a file gave, checked before a world is made from them."""

from __future__ import annotations

import math

from roll.errors import ConfigError


def check_number(name: str, value: object, low: float, high: float = math.inf, *, whole: bool = False) -> None:
    """Refuse an argument that is no number from `low` to `high`; `name` says whose it is: `sokoban: boxes`."""
    kind = int if whole else int | float
    if isinstance(value, kind) and not isinstance(value, bool) and low <= value <= high:
        return
    bounds = f"{low:g} or more" if high == math.inf else f"from {low:g} to {high:g}"
    raise ConfigError(f"{name} must be a {'whole ' if whole else ''}number, {bounds} (got {value!r}); change it")
