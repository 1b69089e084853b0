"""Decides whether the trainer's devices are worth lending, from the waits and the moves so far."""

from __future__ import annotations

from collections import deque
from statistics import fmean

_NUM_WAITS = 8
_SMOOTHING = 0.5
"""Weight of the newest move."""


class LendingRule:
    """Lending pays if the trainer is expected to wait for longer than `factor` times the seconds of both moves.

    The rest of a wait is expected to be the mean rest, at the same time, of those of the last eight waits that were
    longer. A wait that is longer than all of them is expected to last as long again. After a wait in which devices
    were lent the factor is 1: lending shortens waits, and should not end because of that.
    """

    def __init__(self, factor: float) -> None:
        self.factor = factor
        self._waits: deque[float] = deque(maxlen=_NUM_WAITS)
        self._lent = False
        """Whether devices were lent in the last wait."""
        self._lend_s: float | None = None
        self._return_s: float | None = None

    def pays(self, waited_s: float) -> bool:
        """Whether devices should be lent after the trainer has waited for so long."""
        return self.expected_s(waited_s) > (1.0 if self._lent else self.factor) * self.cost_s

    def expected_s(self, waited_s: float) -> float:
        """The expected rest of a wait."""
        rests = [wait - waited_s for wait in self._waits if wait > waited_s]
        return fmean(rests) if rests else waited_s

    @property
    def cost_s(self) -> float:
        """Seconds of lending and of the return; one that was not measured counts as much as the other."""
        measured = [seconds for seconds in (self._lend_s, self._return_s) if seconds is not None]
        return 2 * fmean(measured) if measured else 0.0

    def record_wait(self, seconds: float, *, lent: bool) -> None:
        """The trainer has waited for so long, and its devices were lent meanwhile or not."""
        self._waits.append(seconds)
        self._lent = lent

    def record_lend(self, seconds: float) -> None:
        """The generators serve after so long."""
        self._lend_s = _smoothed(self._lend_s, seconds)

    def record_return(self, seconds: float) -> None:
        """The trainer has its devices back after so long."""
        self._return_s = _smoothed(self._return_s, seconds)


def _smoothed(before: float | None, newest: float) -> float:
    return newest if before is None else before + _SMOOTHING * (newest - before)
