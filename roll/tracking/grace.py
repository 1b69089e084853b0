"""A warning if steps take longer than the time between a signal and the kill by the cluster."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from statistics import median

_WINDOW, _FEWEST = 21, 3


class GraceCheck:
    """A sink that compares the median time of recent steps with the grace time, and warns once."""

    def __init__(self, grace_s: float, notice: Callable[[str], None]) -> None:
        self._grace_s, self._notice = grace_s, notice
        self._times: deque[float] = deque(maxlen=_WINDOW)
        self._warned = False

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Count the time of a step."""
        if "time/step" not in metrics:
            return
        self._times.append(metrics["time/step"])
        usual = median(self._times)
        if self._warned or len(self._times) < _FEWEST or usual <= self._grace_s:
            return
        self._warned = True
        self._notice(
            f"warning: a step takes {usual:.3g} s (median), more than interrupt.grace_s ({self._grace_s:g} s): a "
            "signal loses the step; raise the grace time, make steps smaller, or checkpoint more often"
        )

    def close(self) -> None:
        """Nothing is open."""
