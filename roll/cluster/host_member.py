"""One worker of a cluster with the face of a `Host`: it can be given up, and whoever waits for it hears so at once.

| call | waits for | woken by |
|---|---|---|
| `ask` | the answer to this call | the answer; the worker's death; `kill` |
| `gives_way` | the worker's event loop to come round | its answer; the limit of time |
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Generic

from roll.cluster.handle import Cluster, Method, P, R, W
from roll.errors import WorkerDied


class Member(Generic[W]):
    """A worker by its rank. A worker that is given up lives on until its cluster replaces it, or ends."""

    def __init__(self, cluster: Cluster[W], rank: int, *, name: str, answer: Callable[[Any], Awaitable[None]]) -> None:
        """`answer` is a method of the worker that does nothing."""
        self.name, self._cluster, self._rank, self._alive = f"{name} {rank}", cluster, rank, answer
        self.why = ""
        """Why it is no more; empty while it lives."""
        self._gone = asyncio.get_running_loop().create_future()

    @property
    def pid(self) -> int:
        """Of its process, where the cluster says."""
        pids: list[int] = getattr(self._cluster, "pids", [])
        return pids[self._rank] if self._rank < len(pids) else 0

    async def ask(self, method: Method[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """What the worker answers; raises what it raised there."""
        if self.why:
            raise WorkerDied(f"{self.name}: {self.why}")
        call = asyncio.ensure_future(self._cluster.at(self._rank, method, *args, **kwargs))
        try:
            await asyncio.wait([call, self._gone], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            call.cancel()
            raise
        if not call.done():
            call.cancel()
            raise WorkerDied(f"{self.name}: {self.why} (during {method.__name__})")
        try:
            return call.result()
        except WorkerDied as error:
            self.kill(str(error))
            raise

    async def gives_way(self, within_s: float) -> bool:
        """Whether its event loop comes round in that time: where it does not, a call holds everything up."""
        try:
            async with asyncio.timeout(within_s):
                await self.ask(self._alive)
        except (TimeoutError, WorkerDied):
            return False
        return True

    def memory(self) -> int:
        """Not known from here."""
        return 0

    def kill(self, why: str) -> None:
        """Give it up: everyone who waits for it hears why."""
        if not self.why:
            self.why = why
            self._gone.set_result(None)
