"""All workers in this process and this thread: a breakpoint in any of them stops everything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roll.cluster.handle import Cluster, Method, P, R, W, build_worker
from roll.cluster.pending import PendingCall
from roll.types import Spec


class InlineCluster(Cluster[W]):
    """`Cluster` over objects of this process."""

    def __init__(self, workers: Sequence[W]) -> None:
        assert workers, "a cluster has at least one worker"
        self._workers: tuple[Any, ...] = tuple(workers)

    @property
    def size(self) -> int:
        return len(self._workers)

    async def at(self, rank: int, method: Method[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await getattr(self._workers[rank], method.__name__)(*args, **kwargs)


class InlineExecutor:
    """`Executor` of a run in one process; workers exist as soon as a cluster is requested."""

    def cluster(self, worker: Spec, size: int, *, role: str, python: str | None = None) -> InlineCluster[Any]:
        assert python is None, f"{role}: inline workers run in this interpreter"
        return InlineCluster[Any]([build_worker(worker, rank) for rank in range(size)])

    async def start(self) -> None:
        """Nothing to start."""

    async def stop(self) -> None:
        """Nothing to stop."""

    def pending_calls(self) -> Sequence[PendingCall]:
        return ()  # there is no other process
