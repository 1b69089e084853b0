"""Starts the replacement of a worker as soon as a node has room for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from roll.errors import NoRoom, RunStopped
from roll.journal.events import NodeAwaited
from roll.journal.store import Journal

_LONGEST_PAUSE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeWait:
    """How long a worker without a node is waited for."""

    journal: Journal
    timeout_s: float
    notice: Callable[[str], None]
    """Callback for user-facing notices."""

    async def start(
        self, worker: str, start: Callable[[], Awaitable[None]], *, enough: Callable[[], bool] = lambda: False
    ) -> None:
        """Call `start` until a node has room; raises `RunStopped` after `timeout_s`, in which `enough` was false.

        `enough` is whether the run can go on without this worker.
        """
        began, pause_s, optional, deadline, reason = time.monotonic(), 0.5, None, 0.0, ""
        while True:
            try:
                await start()
                break
            except NoRoom as error:
                if enough() is not optional:
                    optional, deadline = enough(), time.monotonic() + self.timeout_s
                    self.notice(f"{error.what}; {self._describe(optional=optional)}")
                if not optional and time.monotonic() >= deadline:
                    self._record(worker, error.what, began)
                    raise RunStopped(
                        f"{error.what}, for {self.timeout_s:g} s (ray.node_timeout_s); "
                        "start another node, then `roll resume` the run"
                    ) from None
                reason = error.what
            pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)
            await asyncio.sleep(pause_s)
        if optional is not None:
            self._record(worker, reason, began)
            self.notice(f"{worker} has a node after {time.monotonic() - began:.0f} s")

    def _describe(self, *, optional: bool) -> str:
        if optional:
            return "the run goes on without it until one has (actor_infer.min_workers)"
        return f"the run waits {self.timeout_s:g} s for one (ray.node_timeout_s)"

    def _record(self, worker: str, reason: str, began: float) -> None:
        self.journal.record(NodeAwaited(worker=worker, reason=reason, seconds=time.monotonic() - began))
