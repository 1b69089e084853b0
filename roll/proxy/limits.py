"""How much clients may ask, and the record of what was refused, which a flood does not fill."""

from __future__ import annotations

from collections.abc import Callable

from roll.journal.events import ProxyRefused

_WINDOW_S = 10.0
"""So long the same refusals of one session are only counted."""
_LONGEST = 300


class Rate:
    """Lets so many requests through a second, and twice as many at once after a pause."""

    __slots__ = ("_filled_s", "_left", "_most", "_per_s")

    def __init__(self, per_s: float, now_s: float) -> None:
        self._per_s, self._most = per_s, max(1.0, 2 * per_s)
        self._left, self._filled_s = self._most, now_s

    def wait_s(self, now_s: float) -> float:
        """0.0 lets one through; else seconds until one will be."""
        self._left = min(self._most, self._left + (now_s - self._filled_s) * self._per_s)
        self._filled_s = now_s
        if self._left >= 1.0:
            self._left -= 1.0
            return 0.0
        return (1.0 - self._left) / self._per_s


class Refusals:
    """Every refusal is written down: the first of its kind at once, the same again as a number, once in a while."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.record: Callable[[ProxyRefused], object] | None = None
        """Who writes them down; None: they are counted alone."""
        self.num = 0
        self._clock, self._since_s = clock, clock()
        self._again: dict[tuple[str, int], tuple[int, str]] = {}
        """How often more since the window began, and why last."""

    def note(self, session: str, status: int, why: str) -> None:
        """A request was refused; `session` names one that is known, or nothing."""
        self.num += 1
        if self._clock() - self._since_s > _WINDOW_S:
            self.flush()
        before = self._again.get((session, status))
        if before is None:
            self._again[session, status] = (0, "")
            self._write(session, status, why, 1)
        else:
            self._again[session, status] = (before[0] + 1, why)

    def flush(self) -> None:
        """Write down what was counted."""
        again, self._again, self._since_s = self._again, {}, self._clock()
        for (session, status), (times, why) in again.items():
            if times:
                self._write(session, status, why, times)

    def _write(self, session: str, status: int, why: str, times: int) -> None:
        if self.record is not None:
            self.record(ProxyRefused(session=session, status=status, why=why[:_LONGEST], times=times))
