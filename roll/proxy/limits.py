"""The rate limit of clients, and a log of refused requests whose size is bounded."""

from __future__ import annotations

from collections.abc import Callable

from roll.journal.events import ProxyRequestRefused

_WINDOW_S = 10.0
"""Period in which repeated refusals of one session are only counted."""
_MAX_REASON = 300


class RateLimiter:
    """A token bucket: `per_s` requests per second, with bursts of twice as many."""

    __slots__ = ("_capacity", "_filled_s", "_left", "_per_s")

    def __init__(self, per_s: float, now_s: float) -> None:
        self._per_s, self._capacity = per_s, max(1.0, 2 * per_s)
        self._left, self._filled_s = self._capacity, now_s

    def wait_s(self, now_s: float) -> float:
        """Admit a request and return 0.0, or return the seconds until one is admitted."""
        self._left = min(self._capacity, self._left + (now_s - self._filled_s) * self._per_s)
        self._filled_s = now_s
        if self._left >= 1.0:
            self._left -= 1.0
            return 0.0
        return (1.0 - self._left) / self._per_s


class RefusalLog:
    """Records the first refusal of each kind at once, and repetitions as a count per period."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.record: Callable[[ProxyRequestRefused], object] | None = None
        """Callback that stores an event; None: refusals are only counted."""
        self.num = 0
        self._clock, self._since_s = clock, clock()
        self._repeated: dict[tuple[str, int], tuple[int, str]] = {}
        """By session and status: repetitions in this period, and the last reason."""

    def add(self, session: str, status: int, reason: str) -> None:
        """Add a refusal; `session` is empty if the request named no known one."""
        self.num += 1
        if self._clock() - self._since_s > _WINDOW_S:
            self.flush()
        before = self._repeated.get((session, status))
        if before is None:
            self._repeated[session, status] = (0, "")
            self._record(session, status, reason, 1)
        else:
            self._repeated[session, status] = (before[0] + 1, reason)

    def flush(self) -> None:
        """Record the counted repetitions."""
        repeated, self._repeated, self._since_s = self._repeated, {}, self._clock()
        for (session, status), (count, reason) in repeated.items():
            if count:
                self._record(session, status, reason, count)

    def _record(self, session: str, status: int, reason: str, count: int) -> None:
        if self.record is not None:
            self.record(ProxyRequestRefused(session=session, status=status, reason=reason[:_MAX_REASON], count=count))
