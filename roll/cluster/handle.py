"""Workers of one role, called through handles. Code above this room does not depend on where they run.

A call passes the unbound method of a protocol, so that editors can follow it and type checkers know its parameters:
`await trainers.each(Trainer.save, path)`.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence, Set
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, runtime_checkable

from roll.cluster.pending import PendingCall
from roll.errors import PeerLost, WorkerDied
from roll.types import Spec

W = TypeVar("W")
W_co = TypeVar("W_co", covariant=True)
P = ParamSpec("P")
S = TypeVar("S")
R = TypeVar("R")

Method = Callable[Concatenate[Any, P], Awaitable[R]]
_CAUSE_S = 15.0
"""Seconds in which a worker's death is reported after it broke the calls of others."""
_SETTLE_S = 2.0
"""Seconds in which the other ranks may end a call after an exception in one of them."""
UNFINISHED = "other workers had not ended this call"
"""Note on an error after which workers may be at different places."""


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
        return await gather_ranks(calls)

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


async def gather_ranks(calls: Iterable[Awaitable[R]]) -> list[R]:
    """The results in order. If calls fail, raises the cause: the error of a worker that has not lost a peer.

    A death breaks the collective operations of all ranks, and their errors may arrive before Ray reports it. After an
    exception in one rank the others may wait for it in a collective operation: they are waited for a short time only,
    and the error then has the note `UNFINISHED`.
    """
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        errors = _errors(tasks)
        if errors and not _causes(errors):
            errors = await _wait_for_cause(tasks)
        if errors:
            cause = next(iter(_causes(errors)), errors[0])
            if not isinstance(cause, WorkerDied):
                await asyncio.wait(tasks, timeout=_SETTLE_S)  # all ranks may be about to raise it
            raise cause
        return [task.result() for task in tasks]
    except BaseException as error:
        if not all(task.done() for task in tasks):
            error.add_note(UNFINISHED)
        raise
    finally:
        for task in tasks:
            task.cancel()


async def _wait_for_cause(tasks: Sequence[asyncio.Future[Any]]) -> list[BaseException]:
    """The errors once all calls have ended or the cause is known; waits at most `_CAUSE_S`."""
    try:
        async with asyncio.timeout(_CAUSE_S):
            while (pending := [task for task in tasks if not task.done()]) and not _causes(_errors(tasks)):
                await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
    except TimeoutError:
        pass
    return _errors(tasks)


def _errors(tasks: Sequence[asyncio.Future[Any]]) -> list[BaseException]:
    ended = [task.exception() for task in tasks if task.done() and not task.cancelled()]
    return [error for error in ended if error is not None]


def _causes(errors: Sequence[BaseException]) -> list[BaseException]:
    return [error for error in errors if not isinstance(error, PeerLost)]


class RankGroup(Cluster[W]):
    """`Cluster` of one worker made of several ranks. All get the same arguments; rank 0's result is returned.

    One call at a time: two calls that reached the ranks in different orders would deadlock. For the same reason no call
    follows one that some ranks have not ended, until they are replaced: it raises the error of that call.
    """

    def __init__(self, ranks: Cluster[W], renew: Callable[[], Spec] | None = None) -> None:
        """`renew` returns the spec of new ranks, which need another rendezvous than those before them."""
        self._ranks, self._renew = ranks, renew
        self._lock = asyncio.Lock()
        self._failure: Exception | None = None
        """The error of a call that some ranks have not ended."""

    @property
    def size(self) -> int:
        return 1

    async def at(self, rank: int, method: Method[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        assert rank == 0, f"a group of ranks is one worker (got rank {rank})"
        async with self._lock:
            if self._failure is not None and method.__name__ != "stop":
                raise self._failure
            try:
                return (await self._ranks.each(method, *args, **kwargs))[0]
            except BaseException as error:
                if UNFINISHED in getattr(error, "__notes__", ()):
                    cancelled = f"{method.__name__} was cancelled while ranks ran it; they have to start again"
                    self._failure = error if isinstance(error, Exception) else WorkerDied(cancelled)
                raise

    async def replace(self, rank: int) -> None:
        """Start all ranks anew: those that survived a death wait for messages that never come."""
        assert self._renew is not None and isinstance(self._ranks, Restartable), "these ranks cannot start again"
        async with self._lock:
            await self._ranks.restart(self._renew())
            self._failure = None

    def kill_worker(self, rank: int, reason: str) -> None:
        """Kill the stopped ranks, or all of them if none is."""
        assert isinstance(self._ranks, Killable), "these ranks cannot be killed"
        stopped = [each for each in range(self._ranks.size) if self._ranks.stopped(each)]
        for each in stopped or range(self._ranks.size):
            self._ranks.kill_worker(each, reason)

    def dump_stacks(self, rank: int) -> None:
        """Of all ranks: one that hangs may wait for another one."""
        if isinstance(self._ranks, HasStacks):
            for each in range(self._ranks.size):
                self._ranks.dump_stacks(each)

    def stopped(self, rank: int) -> bool:
        return isinstance(self._ranks, Killable) and any(map(self._ranks.stopped, range(self._ranks.size)))


@runtime_checkable
class Replaceable(Protocol):
    """A cluster that can start a new worker in place of a dead one."""

    async def replace(self, rank: int) -> None:
        """Returns once the new worker is ready; raises what keeps it from starting."""


@runtime_checkable
class ElasticCluster(Protocol):
    """A cluster of which not every rank has a worker: workers join under free ranks, and leave."""

    @property
    def size(self) -> int:
        """Most workers."""
        ...

    @property
    def absent(self) -> Set[int]:
        """Ranks without a worker. Calls on them raise `WorkerDied`."""
        ...

    async def add(self, rank: int) -> None:
        """Start a worker under a rank without one; raises `NoRoom` if no node has room, or why it cannot join."""

    async def remove(self, rank: int, *, refused: bool = False) -> None:
        """End a worker and free its devices. No worker is added on the node of a `refused` one any more."""

    async def draining(self) -> Set[int]:
        """Ranks whose nodes are about to leave."""
        ...

    def node(self, rank: int) -> str:
        """The node of a worker, as `address:port`; empty if it is not known."""
        ...


def present_ranks(cluster: Cluster[Any]) -> list[int]:
    """The ranks that have a worker."""
    absent = cluster.absent if isinstance(cluster, ElasticCluster) else ()
    return [rank for rank in range(cluster.size) if rank not in absent]


@runtime_checkable
class Restartable(Protocol):
    """A cluster all of whose workers can be started again together."""

    async def restart(self, worker: Spec) -> None:
        """Kill all workers, and return once new ones, built from `worker`, are ready."""


@runtime_checkable
class Killable(Protocol):
    """A cluster whose workers can be killed while calls wait for them."""

    def kill_worker(self, rank: int, reason: str) -> None:
        """Calls in flight raise `WorkerDied` at once; `reason` completes the sentence "its process ..."."""

    def stopped(self, rank: int) -> bool:
        """Whether a signal or a debugger has stopped its process; False if that is unknown."""
        ...


@runtime_checkable
class HasStacks(Protocol):
    """A cluster whose workers write their stacks on request, also while they are busy."""

    def dump_stacks(self, rank: int) -> None:
        """Write the stacks of a worker's threads to its log, if it runs on this machine."""


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


@runtime_checkable
class TakesUp(Protocol):
    """An executor that uses living workers of an earlier controller."""

    @property
    def keeps(self) -> bool:
        """Whether workers may outlive this controller."""
        ...

    def leave(self) -> None:
        """Leave the workers to the next controller."""

    @property
    def taken_up(self) -> Mapping[str, float]:
        """These workers, with the seconds that it took to take them up."""
        ...

    @property
    def started(self) -> Mapping[str, float]:
        """The other workers, with the seconds that their processes took to start."""
        ...


def build_worker(spec: Spec, rank: int) -> Any:
    """Import `spec.name` and call it with the rank and `spec.kwargs`."""
    module, _, attribute = spec.name.partition(":")
    return getattr(importlib.import_module(module), attribute)(rank, **spec.kwargs)
