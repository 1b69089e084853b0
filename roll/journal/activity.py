"""What a worker is doing, told whenever it begins something else."""

from __future__ import annotations

import time
from collections.abc import Callable

from roll.journal.store import Journal


class Activity:
    """The spans of one worker. It does one thing at a time; what it waits for is named "idle: ..."."""

    def __init__(self, journal: Journal, worker: str, clock: Callable[[], float] = time.time) -> None:
        self._journal, self._worker, self._clock = journal, worker, clock
        self._doing: str | None = None
        self._began = 0.0
        journal.before_close(self.close)

    def enter(self, doing: str) -> None:
        """From now on it does this; saying so again changes nothing."""
        if doing != self._doing:
            self._switch(doing)

    def close(self) -> None:
        """It does nothing any more, until it enters something."""
        self._switch(None)

    def _switch(self, doing: str | None) -> None:
        now = self._clock()
        if self._doing is not None:
            self._journal.span(self._worker, self._doing, self._began, now)
        self._doing, self._began = doing, now
