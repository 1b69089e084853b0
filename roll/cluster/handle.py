"""Workers of one role, called through handles. Nothing above this room can tell where they run.

Calls name the unbound method of a protocol, so that an editor can follow them and a type checker knows what they take:
`await trainers.each(Trainer.save, path)`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, runtime_checkable

from roll.types import Call

W = TypeVar("W")
W_co = TypeVar("W_co", covariant=True)
P = ParamSpec("P")
S = TypeVar("S")
R = TypeVar("R")

Method = Callable[Concatenate[Any, P], Awaitable[R]]


class Cluster(Protocol[W_co]):
    """n workers, one engine or service each.

    each     the same call on every worker; answers in rank order
    scatter  shard i to data-parallel rank i; one answer a shard
    at       one worker by its rank
    any      one worker, whichever has the fewest calls under way
    """

    @property
    def size(self) -> int: ...

    async def each(self, method: Method[P, R], *args: P.args, **kwargs: P.kwargs) -> list[R]: ...

    async def scatter(
        self,
        method: Callable[Concatenate[Any, S, P], Awaitable[R]],
        shards: Sequence[S],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> list[R]: ...

    async def at(self, rank: int, method: Method[P, R], *args: P.args, **kwargs: P.kwargs) -> R: ...

    async def any(self, method: Method[P, R], *args: P.args, **kwargs: P.kwargs) -> R: ...


@runtime_checkable
class Replacing(Protocol):
    """A cluster that can put a fresh worker in the place of one that is gone."""

    async def replace(self, rank: int) -> None:
        """Returns once the new worker is there; raises what keeps it from starting."""
        ...


class Executor(Protocol):
    """Where the workers of a run are: what brings them up, and ends them. All clusters are asked for before `start`."""

    def cluster(self, worker: Call, size: int, *, role: str, python: str | None = None) -> Cluster[Any]:
        """`size` workers of a role, each made as `worker` names it, in the interpreter `python`; None: this one."""
        ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...
