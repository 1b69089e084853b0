"""All workers in this process and this thread: a breakpoint in any of them stops everything."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Concatenate, Generic

from roll.cluster.handle import Method, P, R, S, W
from roll.types import Call


class InlineCluster(Generic[W]):
    """`Cluster` over objects that are simply here."""

    def __init__(self, workers: Sequence[W]) -> None:
        assert workers, "a cluster has at least one worker"
        self._workers: tuple[Any, ...] = tuple(workers)
        self._under_way = [0] * len(workers)

    @property
    def size(self) -> int:
        return len(self._workers)

    async def each(self, method: Method[P, R], *args: P.args, **kwargs: P.kwargs) -> list[R]:
        calls = [self.at(rank, method, *args, **kwargs) for rank in range(self.size)]
        return list(await asyncio.gather(*calls))

    async def scatter(
        self,
        method: Callable[Concatenate[Any, S, P], Awaitable[R]],
        shards: Sequence[S],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> list[R]:
        assert len(shards) == self.size, f"{len(shards)} shards for {self.size} workers"
        calls = [self.at(rank, method, shard, *args, **kwargs) for rank, shard in enumerate(shards)]
        return list(await asyncio.gather(*calls))

    async def at(self, rank: int, method: Method[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        self._under_way[rank] += 1
        try:
            return await getattr(self._workers[rank], method.__name__)(*args, **kwargs)
        finally:
            self._under_way[rank] -= 1

    async def any(self, method: Method[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await self.at(self._under_way.index(min(self._under_way)), method, *args, **kwargs)


class InlineExecutor:
    """`Executor` of a run in one process: a worker is there as soon as it is asked for."""

    def cluster(self, worker: Call, size: int, *, role: str, python: str | None = None) -> InlineCluster[Any]:
        assert python is None, f"{role}: there is one process, and one interpreter"
        module, _, attribute = worker.name.partition(":")
        made = getattr(importlib.import_module(module), attribute)
        return InlineCluster[Any]([made(rank, **worker.arguments) for rank in range(size)])

    async def start(self) -> None:
        """Nothing to bring up."""

    async def stop(self) -> None:
        """Nothing to end."""
