"""Warnings about phases of a run that take much longer than they used to."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from statistics import median
from types import TracebackType

from roll.tracking.log import announce

_FACTOR = 5.0
"""A phase is slow after this multiple of its median so far."""
_WINDOW = 100
"""Number of recent durations of a phase that the median is taken of."""


class PhaseWatch:
    """While entered, warns of a phase that lasts longer than `after_s` and five times its median so far.

    A stopped worker is reported after one to 1.25 times `after_s`, also if the phase is always slow. The warning is
    repeated each time the duration has doubled. It comes from a separate thread, so that a phase that blocks the
    event loop is reported as well.
    """

    def __init__(
        self,
        after_s: float = 30.0,
        describe: Callable[[str, float], str] = lambda phase, elapsed_s: "",
        clock: Callable[[], float] = time.monotonic,
        stopped: Callable[[], str] = lambda: "",
    ) -> None:
        """`describe` names what a phase waits for after so many seconds, `stopped` the workers that are stopped.

        Both are called from the thread.
        """
        self._stopped, self._stop_reported = stopped, False
        self._after_s, self._describe, self._clock = after_s, describe, clock
        self.details: dict[str, Callable[[], str]] = {}
        """More about single phases, called from the thread."""
        self._durations: dict[str, deque[float]] = {}
        self._current = ("", 0.0)
        self._next_s = after_s
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="phase watch", daemon=True)

    def __enter__(self) -> PhaseWatch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed.set()
        self._thread.join()

    @property
    def current(self) -> tuple[str, float]:
        """The current phase, "" for none, and when it began on this watch's clock."""
        return self._current

    def enter(self, phase: str) -> None:
        """A phase begins, which ends the one before; "" is none."""
        before, began = self._current
        now = self._clock()
        if before:
            self._durations.setdefault(before, deque(maxlen=_WINDOW)).append(now - began)
        self._next_s = max(self._after_s, _FACTOR * self._median(phase))
        self._current, self._stop_reported = (phase, now), False

    def check(self) -> None:
        """Warn if the current phase is slow."""
        phase, began = self._current
        elapsed_s = self._clock() - began
        if not phase or elapsed_s < self._after_s:
            return
        if elapsed_s < self._next_s and (self._stop_reported or not self._stopped()):
            return
        self._stop_reported = True
        self._next_s = 2 * elapsed_s
        usual = f" (median {self._median(phase):.1f} s)" if phase in self._durations else ""
        details = [self.details[phase]()] if phase in self.details else []
        parts = [f"phase {phase} has lasted {elapsed_s:.0f} s{usual}", *details, self._describe(phase, elapsed_s)]
        announce("; ".join(filter(None, parts)), logging.WARNING)

    def _median(self, phase: str) -> float:
        durations = list(self._durations.get(phase, ()))  # a copy: the other thread may append
        return median(durations) if durations else 0.0

    def _run(self) -> None:
        while not self._closed.wait(self._after_s / 4):
            self.check()
