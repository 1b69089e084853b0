"""Workers that are one to everybody else: ranks that hold a model together and must all do whatever one of them does.

| call | waits for | woken by |
|---|---|---|
| any of them | the call before it, then the answers of all ranks | the answers; the first rank that fails |
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Concatenate, Generic

from roll.cluster.handle import Cluster, Method, P, R, S, W


class Gang(Generic[W]):
    """`Cluster` of one worker that is many ranks. All are given the same arguments; rank 0 answers for them.

    One call at a time: two that met the ranks in different orders would wait for each other for ever.
    """

    def __init__(self, ranks: Cluster[W]) -> None:
        self._ranks = ranks
        self._turn = asyncio.Lock()

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
        assert len(shards) == 1, f"{len(shards)} shards for ranks that are one worker"
        return [await self.at(0, method, shards[0], *args, **kwargs)]

    async def at(self, rank: int, method: Method[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        assert rank == 0, f"there is one worker (got rank {rank})"
        async with self._turn:
            return (await self._ranks.each(method, *args, **kwargs))[0]

    async def any(self, method: Method[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await self.at(0, method, *args, **kwargs)
