"""Workers that die while they start for the first time, and reports of all that were replaced."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import count
from typing import TypeVar

from roll.errors import RunStopped, WorkerDied
from roll.tracking.log import announce

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """A worker that died, and in whose place another one has started."""

    worker: str
    reason: str
    """Why it died."""
    seconds: float
    """Time of the start that replaced it."""


class ReplacementReports:
    """The replaced workers of a pool. Those of the time before there is a receiver wait for it."""

    def __init__(self) -> None:
        self._waiting: list[Replacement] = []
        self._receiver: Callable[[Replacement], None] = self._waiting.append

    def add(self, replacement: Replacement) -> None:
        self._receiver(replacement)

    def send_to(self, receiver: Callable[[Replacement], None]) -> None:
        """Send the reports so far, and all later ones, to `receiver`."""
        self._receiver = receiver
        waiting = self._waiting[:]
        self._waiting.clear()
        for each in waiting:
            receiver(each)


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstStart:
    """How often a worker that dies in its first start is replaced."""

    max_deaths: int = 0
    setting: str = ""
    """The configuration key of this number."""

    async def run(self, start: Callable[[], Awaitable[T]], worker: str, reports: ReplacementReports) -> T:
        """The result of `start`, which is called again after a death; raises `RunStopped` past the limit."""
        reason = ""
        for num_deaths in count():
            began = time.monotonic()
            try:
                result = await start()
            except WorkerDied as died:
                if num_deaths == self.max_deaths:
                    if not num_deaths:
                        raise
                    before = f"{num_deaths} before it died in their first start too, see {self.setting}"
                    raise RunStopped(f"{died} ({before})") from None
                reason = died.what
                announce(f"{reason}; another one is started", logging.WARNING)
            else:
                if num_deaths:
                    reports.add(Replacement(worker=worker, reason=reason, seconds=time.monotonic() - began))
                return result
        raise AssertionError("count() does not end")
