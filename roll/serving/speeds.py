"""Measured speeds of generators, so that faster ones get more of the outstanding tokens.

The speed of a generator is its throughput under the load that it gets: sampled tokens per second, over windows in which
it has nearly as many requests as in its busiest ones, exponentially smoothed. The few requests left at the end of a
step say nothing about it. Balanced by throughput, all generators sample a request at the same speed: where a generator
with twice the requests is not twice as fast, its share shrinks until that holds.
"""

from __future__ import annotations

from dataclasses import dataclass

_WINDOW_S = 1.0
"""Shortest window; it also lasts until each running request has reported once, on average."""
_SMOOTHING = 0.3
"""Weight of the newest window."""
_COMPARABLE = 0.5
"""Least load of a window that counts, as a fraction of the load of the busiest ones."""
_FORGET = 0.02
"""Per window of full speed, part of that load which is forgotten: a run may have fewer requests later."""
_EQUAL = 1.1
"""Generators whose speeds differ by no more than this factor count as equal."""


@dataclass(slots=True)
class _Window:
    """One generator, since its last complete window."""

    began: float | None = None
    last: float = 0.0
    tokens: int = 0
    outputs: int = 0
    request_s: float = 0.0
    """Requests times seconds."""
    busiest: float = 0.0
    """Mean number of requests of the busiest windows."""
    speed: float | None = None
    """Tokens per second; None before the first measurement."""


class GeneratorSpeeds:
    """Speeds of all generators of one router."""

    def __init__(self, size: int) -> None:
        self._windows = [_Window() for _ in range(size)]
        self.weights = [1.0] * size
        """Speeds relative to their mean; 1 for a generator that was not measured, and for all of nearly equal ones."""

    def record(self, rank: int, *, tokens: int, outputs: int, num_requests: int, now: float) -> bool:
        """Count the outputs of a generator that had `num_requests` requests; whether weights have changed."""
        window = self._windows[rank]
        if not num_requests or window.began is None:
            window.began, window.last, window.tokens, window.outputs, window.request_s = None, now, 0, 0, 0.0
            if num_requests:
                window.began = now
            return False
        window.request_s += num_requests * (now - window.last)
        window.last, window.tokens, window.outputs = now, window.tokens + tokens, window.outputs + outputs
        seconds = now - window.began
        if seconds < _WINDOW_S or window.outputs * seconds < window.request_s:
            return False
        changed = _close(window, seconds)
        window.began, window.tokens, window.outputs, window.request_s = now, 0, 0, 0.0
        return changed and self._weigh()

    def forget(self, rank: int) -> None:
        """Another process serves under this rank."""
        self._windows[rank] = _Window()
        self._weigh()

    def _weigh(self) -> bool:
        """Compute the weights; whether they have changed."""
        known = [window.speed for window in self._windows if window.speed is not None]
        before, self.weights = self.weights, [1.0] * len(self._windows)
        if known and max(known) > _EQUAL * min(known):
            mean = sum(known) / len(known)
            self.weights = [1.0 if each.speed is None else each.speed / mean for each in self._windows]
        return self.weights != before


def _close(window: _Window, seconds: float) -> bool:
    """Take the speed of a complete window if its load is comparable; whether it was."""
    load, speed = window.request_s / seconds, window.tokens / seconds
    share = 1.0 if window.speed is None else min(1.0, speed / window.speed) if window.speed else 1.0
    window.busiest = max(load, window.busiest * (1 - _FORGET * share))
    if load < _COMPARABLE * window.busiest:
        return False
    window.speed = speed if window.speed is None else window.speed + _SMOOTHING * (speed - window.speed)
    return window.speed > 0
