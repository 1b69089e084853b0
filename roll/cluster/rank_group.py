"""Ranks that hold one model together, used as one worker: every call runs on all of them.

| call | waits for | woken by |
|---|---|---|
| `at`, `each`, `scatter` | the call before it, then the results of all ranks | the results; the first rank that fails |
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Concatenate, Generic

from roll.cluster.handle import Cluster, Method, P, R, S, W


class RankGroup(Generic[W]):
    """`Cluster` of one worker made of several ranks. All get the same arguments; rank 0's result is returned.

    One call at a time: two calls that reached the ranks in different orders would deadlock.
    """

    def __init__(self, ranks: Cluster[W]) -> None:
        self._ranks = ranks
        self._lock = asyncio.Lock()

    @property
    def size(self) -> int:
        return 1

    async def each(self, method: Method[P, R], *args: P.args, **kwargs: P.kwargs) -> list[R]:
        return [await self.at(0, method, *args, **kwargs)]

    async def scatter(
        self,
        method: Callable[Concatenate[Any, S, P], Awaitable[R]],
        shards: Sequence[S],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> list[R]:
        assert len(shards) == 1, f"{len(shards)} shards for a group of ranks, which is one worker"
        return [await self.at(0, method, shards[0], *args, **kwargs)]

    async def at(self, rank: int, method: Method[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        assert rank == 0, f"a group of ranks is one worker (got rank {rank})"
        async with self._lock:
            return (await self._ranks.each(method, *args, **kwargs))[0]
