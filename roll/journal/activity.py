"""Records the activities of one worker, each when the next one begins."""

from __future__ import annotations

import time
from collections.abc import Callable

from roll.journal.store import Journal


class Activity:
    """The spans of one worker, which does one thing at a time; the name of a wait begins with "idle: "."""

    def __init__(self, journal: Journal, worker: str, clock: Callable[[], float] = time.time) -> None:
        self._journal, self._worker, self._clock = journal, worker, clock
        self._current: str | None = None
        self._start = 0.0
        journal.before_close(self.close)

    def enter(self, activity: str) -> None:
        """Start this activity, unless it is the current one."""
        if activity != self._current:
            self._switch(activity)

    def close(self) -> None:
        """End the current activity."""
        self._switch(None)

    def _switch(self, activity: str | None) -> None:
        now = self._clock()
        if self._current is not None:
            self._journal.record_span(self._worker, self._current, self._start, now)
        self._current, self._start = activity, now
