"""Detects generators that do not respond, and kills them so that they are replaced like dead ones.

Every generator has a call for its outputs in flight, which returns within about a second even without outputs. One that
stays unanswered for the whole timeout belongs to a process that is stopped, or blocked for good.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from roll.cluster.handle import Killable

T = TypeVar("T")
_CHECKS = 4
"""Checks per timeout. A call has to be unanswered at each of them, so that time in which the controller itself was
blocked counts at most once."""


@dataclass(slots=True)
class _Poll:
    since: float
    num_checks: int = 0


class Liveness:
    """Kills generators that have not answered a poll for `timeout_s`, between one and 1.25 times of it.

    track(rank, poll)   waits for the poll    woken by its result, or `WorkerDied` once the generator is killed
    run(...)            waits for the next check
    """

    def __init__(self, generators: Killable, timeout_s: float, key: str = "rollout.request_timeout_s") -> None:
        self._generators, self._timeout_s, self._key = generators, timeout_s, key
        self._polls: dict[int, _Poll] = {}

    async def track(self, rank: int, poll: Awaitable[T]) -> T:
        """The result of a poll."""
        self._polls[rank] = _Poll(_now())
        try:
            return await poll
        finally:
            del self._polls[rank]

    async def run(self, transferring: Callable[[], bool]) -> None:
        """Check until cancelled. While weights are transferred only a stopped process counts: loading takes long."""
        while True:
            await asyncio.sleep(self._timeout_s / _CHECKS)
            for rank, poll in list(self._polls.items()):
                poll.num_checks += 1
                if poll.num_checks > _CHECKS and (not transferring() or self._generators.stopped(rank)):
                    waited = f"{_now() - poll.since:.0f} s"
                    self._generators.kill_worker(rank, f"did not respond for {waited} ({self._key})")


def _now() -> float:
    return asyncio.get_running_loop().time()
