"""Standard errors of means of rewards, from the other metrics of the same steps."""

from __future__ import annotations

import numpy as np

from roll.watch.metrics import Column, ReadColumn


def standard_error(name: str, read: ReadColumn) -> Column | None:
    """One standard error per row; None where the metrics do not have the number of independent values.

    The groups of a step are independent of each other, as are held-out tasks; attempts at the same task are not.
    """
    parts = name.split("/")
    if name == "reward/mean":
        return _of_mean(read("reward/std"), read("trained/groups"))
    if parts[0] == "domain" and len(parts) == 3 and parts[2] == "reward":
        return _of_mean(read(f"domain/{parts[1]}/std"), read(f"domain/{parts[1]}/groups"))
    if parts[0] != "validation" or len(parts) > 3 or parts[-1] not in ("reward", "accuracy"):
        return None
    above, values = name.rpartition("/")[0], read(name)
    if parts[-1] == "accuracy":
        spread = None if values is None else np.sqrt(np.clip(values * (1 - values), 0.0, None))
    else:
        spread = read(f"{above}/std")
    return _of_mean(spread, read(f"{above}/tasks"))


def _of_mean(spread: Column | None, count: Column | None) -> Column | None:
    if spread is None or count is None:
        return None
    return np.where(count > 0, spread / np.sqrt(np.maximum(count, 1.0)), np.nan)
