"""One worker of a cluster with the interface of `ProcessWorker`, so that it can be abandoned while calls wait for it.

| call | waits for | woken by |
|---|---|---|
| `call` | the reply to this call | the reply; the worker's death; `kill` |
| `responds` | a turn of the worker's event loop | its reply; the timeout |
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Generic

from roll.cluster.handle import Cluster, Method, P, R, W
from roll.errors import WorkerDied

_LOG = logging.getLogger(__name__)


class ClusterMember(Generic[W]):
    """A worker by its rank. After `kill` the worker itself runs on until its cluster replaces it, or stops."""

    def __init__(self, cluster: Cluster[W], rank: int, *, name: str, ping: Callable[[Any], Awaitable[None]]) -> None:
        """`ping` is a method of the worker that does nothing."""
        self.name, self._cluster, self._rank, self._ping = f"{name} {rank}", cluster, rank, ping
        self.exit_reason = ""
        """Why it was abandoned; empty until then."""
        self._abandoned = asyncio.get_running_loop().create_future()

    @property
    def pid(self) -> int:
        """Its process id, if the cluster knows it; else 0."""
        pids: list[int] = getattr(self._cluster, "pids", [])
        return pids[self._rank] if self._rank < len(pids) else 0

    async def call(self, method: Method[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """The worker's result; raises what the worker raised."""
        if self.exit_reason:
            raise WorkerDied(f"{self.name}: {self.exit_reason}")
        call = asyncio.ensure_future(self._cluster.at(self._rank, method, *args, **kwargs))
        try:
            await asyncio.wait([call, self._abandoned], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            call.cancel()
            raise
        if not call.done():
            call.cancel()
            raise WorkerDied(f"{self.name}: {self.exit_reason} during {method.__name__}")
        try:
            return call.result()
        except WorkerDied as error:
            if not self.exit_reason:
                _LOG.warning("%s", error)
            self.kill(str(error))
            raise

    async def responds(self, within_s: float) -> bool:
        """Whether the worker's event loop reacts within that time; it does not if a call blocks it."""
        try:
            async with asyncio.timeout(within_s):
                await self.call(self._ping)
        except (TimeoutError, WorkerDied):
            return False
        return True

    def memory(self) -> int:
        """0: unknown for workers of a cluster."""
        return 0

    def kill(self, reason: str) -> None:
        """Abandon the worker: calls in flight and later ones raise `WorkerDied` with the reason."""
        if not self.exit_reason:
            self.exit_reason = reason
            self._abandoned.set_result(None)
