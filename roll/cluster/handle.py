"""Workers of one role, called through handles. Code above this room does not depend on where they run.

A call passes the unbound method of a protocol, so that editors can follow it and type checkers know its parameters:
`await trainers.each(Trainer.save, path)`.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, runtime_checkable

from roll.cluster.pending import PendingCall
from roll.types import Spec

W = TypeVar("W")
W_co = TypeVar("W_co", covariant=True)
P = ParamSpec("P")
S = TypeVar("S")
R = TypeVar("R")

Method = Callable[Concatenate[Any, P], Awaitable[R]]


class Cluster(Protocol[W_co]):
    """n workers, each one engine or service.

    each     the same call on every worker; results in rank order
    scatter  shard i to data-parallel rank i; one result per shard
    at       one worker by its rank
    """

    @property
    def size(self) -> int: ...

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

    async def at(self, rank: int, method: Method[P, R], *args: P.args, **kwargs: P.kwargs) -> R: ...


class RankGroup(Cluster[W]):
    """`Cluster` of one worker made of several ranks. All get the same arguments; rank 0's result is returned.

    One call at a time: two calls that reached the ranks in different orders would deadlock.
    """

    def __init__(self, ranks: Cluster[W]) -> None:
        self._ranks = ranks
        self._lock = asyncio.Lock()

    @property
    def size(self) -> int:
        return 1

    async def at(self, rank: int, method: Method[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        assert rank == 0, f"a group of ranks is one worker (got rank {rank})"
        async with self._lock:
            return (await self._ranks.each(method, *args, **kwargs))[0]


@runtime_checkable
class Replaceable(Protocol):
    """A cluster that can start a new worker in place of a dead one."""

    async def replace(self, rank: int) -> None:
        """Returns once the new worker is ready; raises what keeps it from starting."""


class Executor(Protocol):
    """Starts and stops the workers of a run. All clusters are requested before `start`."""

    def cluster(self, worker: Spec, size: int, *, role: str, python: str | None = None) -> Cluster[Any]:
        """`size` workers of a role, built from `worker` in the interpreter `python` (None: the current one)."""
        ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def pending_calls(self) -> Sequence[PendingCall]:
        """Calls that wait for a worker in another process."""
        ...


def build_worker(spec: Spec, rank: int) -> Any:
    """Import `spec.name` and call it with the rank and `spec.kwargs`."""
    module, _, attribute = spec.name.partition(":")
    return getattr(importlib.import_module(module), attribute)(rank, **spec.kwargs)
