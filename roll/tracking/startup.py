"""Lines about workers that start, so that a start of minutes is not silent."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from roll.tracking.log import announce

T = TypeVar("T")
_LOG = logging.getLogger(__name__)
_EVERY_S = 5.0
_SHOWN_AFTER_S = 2.0
"""Seconds that a start takes before the terminal shows its end; the log has every end."""


class StartProgress:
    """Counts the workers of a role that are ready: a line every few seconds, and one when all are."""

    def __init__(self, role: str, total: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._role, self._total, self._clock, self._num_ready = role, total, clock, 0
        self._began = self._last = clock()

    async def track(self, start: Awaitable[T]) -> T:
        """Await the start of one worker."""
        result = await start
        self._num_ready += 1
        now = self._clock()
        elapsed_s = now - self._began
        line = f"{self._role}: {self._num_ready} of {self._total} are ready after {elapsed_s:.0f} s"
        if self._num_ready == self._total:
            announce(line) if elapsed_s >= _SHOWN_AFTER_S else _LOG.info("%s", line)
        elif now - self._last >= _EVERY_S:
            self._last = now
            announce(line)
        return result
