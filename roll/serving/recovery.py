"""Trainers and other models that survive the loss of their process: a new one is brought to the same state.

The state of a worker is what it was built from or has saved last, and the updates since then. The controller keeps the
batches of these updates, and a new process repeats them. So the result does not depend on when a worker is lost.

| call | waits for | woken by |
|---|---|---|
| `at` and all others | a replacement in progress, then the result | the result; a loss, after which it is repeated |
| `at` with `update` | also a snapshot in progress | |
"""

from __future__ import annotations

import asyncio
import logging
import math
import shutil
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from roll.checkpoint import WriteFailed, as_write_failure
from roll.cluster.handle import Cluster, HasStacks, Killable, Method, P, R, Replaceable, W
from roll.engines.base import LogprobModel, Offloadable, Part, Trainer
from roll.errors import NodeLost, RunStopped, StateLost, WorkerDied
from roll.journal.events import WorkerReplaced
from roll.journal.store import Journal
from roll.serving.node_wait import NodeWait
from roll.types import Batch

_LOG = logging.getLogger(__name__)
_CHECKS = 4
"""Checks per timeout. A call has to be unanswered at each of them, so that time in which the controller itself was
blocked counts at most once."""
_SLOWER = 10.0
"""A call that computes has hung when it takes this multiple of the most seconds per token before."""
_SNAPSHOT_SHARE = 0.02
"""Largest part of the time of updates that is spent on snapshots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryPolicy:
    """How lost workers of one role are replaced."""

    journal: Journal
    max_replacements: int
    """Most replacements in one run."""
    hang_timeout_s: float
    """Seconds without a reply after which a worker may count as hung."""
    snapshot_s: float
    """Seconds of updates after which the state is saved, so that a replacement repeats no more."""
    notice: Callable[[str], None]
    """Callback for user-facing notices."""
    node_timeout_s: float = 600.0
    """Seconds to wait for a node with room for a worker whose node is lost."""


@dataclass(frozen=True, slots=True)
class _Update:
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    seconds: float


@dataclass(slots=True)
class _Worker:
    """The state of one worker, from which it is rebuilt."""

    base: Path | None = None
    """The save that updates continue from; None: the initial state."""
    num_in_base: int = 0
    """Updates that the base contains."""
    updates: list[_Update] = field(default_factory=list[_Update])
    """The updates since."""
    num_in_save: int = 0
    """Updates that the last checkpoint contains, which may not be complete yet."""
    offloaded: list[Part] = field(default_factory=list[Part])
    lost: WorkerDied | None = None
    """Why it has to be replaced."""
    lost_s: float = 0.0
    last_loss: WorkerDied | None = None
    """Why the process before the present one was replaced."""
    generation: int = 0
    saved_by: int = 0
    """The generation that has done or begun the last save."""
    recovering: asyncio.Lock = field(default_factory=asyncio.Lock)
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the update or snapshot in progress."""

    @property
    def num_updates(self) -> int:
        return self.num_in_base + len(self.updates)

    def mark_lost(self, error: WorkerDied, generation: int) -> None:
        """Unless the error is about a process that has been replaced since."""
        if self.generation == generation and self.lost is None:
            self.lost = self.last_loss = error
            self.lost_s = time.monotonic()

    def continue_from(self, base: Path, num_updates: int) -> Path | None:
        """Forget the updates that a complete save contains; returns the base before it."""
        if num_updates < self.num_in_base:
            return None
        before, self.base = self.base, base
        del self.updates[: num_updates - self.num_in_base]
        self.num_in_base = num_updates
        return before


class RecoveringCluster(Cluster[W]):
    """`Cluster` that replaces lost workers and repeats the call, once `policy` is set; before that, a loss is raised.

    The policy has to be set before the first update, since the updates before it are not kept.
    Two calls are not repeated but raise `StateLost`: a broadcast, which needs its receivers, and the question whether
    a save is written, which was lost with the process.
    """

    def __init__(
        self, cluster: Cluster[W], *, role: str, snapshots: Path, sends: bool = False, broadcasts: bool = False
    ) -> None:
        """`snapshots` is a prefix of folders. A trainer that `sends` weights waits for `snapshot_if_due`."""
        self.cluster, self.role, self._snapshots = cluster, role, snapshots
        self.policy: RecoveryPolicy | None = None
        self._sends = sends
        self._not_repeated = {"save_completed", *(["send"] if broadcasts else [])}
        self._workers = [_Worker() for _ in range(cluster.size)]
        self._num_replaced = self._num_failed = 0
        self._slowest: dict[str, float] = {}
        """The most seconds per token of each method that computes."""
        self._snapshot_took_s = 0.0
        self._writing: asyncio.Task[None] | None = None
        """The newest snapshot."""

    @property
    def size(self) -> int:
        return self.cluster.size

    @property
    def generation(self) -> int:
        """Number of replacements; a new process has none of the connections of the one before."""
        return self._num_replaced

    async def at(self, rank: int, method: Method[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        if self.policy is None or method.__name__ == "stop":
            result = await self.cluster.at(rank, method, *args, **kwargs)
            if method.__name__ == "load":
                self._record(rank, "load", args, kwargs, 0.0)
            return result
        async with self._workers[rank].changing if method.__name__ == "update" else nullcontext():
            result = await self._call(rank, method, args, kwargs)
        if method.__name__ == "update" and not self._sends:
            self.snapshot_if_due()
        return result

    @property
    def changed(self) -> bool:
        """Whether updates have begun since the last resumable save did."""
        return any(each.changing.locked() or each.num_in_save != each.num_updates for each in self._workers)

    def snapshot_if_due(self) -> None:
        """Save the state if updates since the last save took long enough; call it when the workers have no other work.

        This returns at once; the next update waits for it.
        """
        if self.policy is None or (self._writing is not None and not self._writing.done()):
            return
        if self._writing is not None:
            self._writing.result()  # raises a failure other than that of the disk
        for rank, worker in enumerate(self._workers):
            repeated_s = sum(update.seconds for update in worker.updates)
            if repeated_s > max(self.policy.snapshot_s, self._snapshot_took_s / _SNAPSHOT_SHARE):
                self._writing = asyncio.create_task(self._snapshot(rank, worker))

    def saved(self, folder: Path) -> None:
        """The last resumable save is complete, and stays in this folder until the next one is."""
        for worker in self._workers:
            self._forget(worker.continue_from(folder, worker.num_in_save))

    async def _call(self, rank: int, method: Callable[..., Awaitable[Any]], args: Any, kwargs: Any) -> Any:
        """The result from a worker with the right state."""
        worker, name, loss = self._workers[rank], method.__name__, None
        while True:
            async with worker.recovering:
                loss = worker.lost or loss
                while worker.lost is not None:
                    await self._recover(rank, worker, worker.lost)
            if name == "save_completed" and worker.saved_by != worker.generation:
                loss = worker.last_loss  # found by another call
            if loss is not None and name in self._not_repeated:
                raise StateLost(loss.what, loss.fix)
            generation, began = worker.generation, time.monotonic()
            try:
                result = await self._watch(rank, method, *args, **kwargs)
            except WorkerDied as error:
                worker.mark_lost(error, generation)
                loss = error
                continue
            self._record(rank, name, args, kwargs, time.monotonic() - began)
            if name == "save":
                worker.saved_by = generation
            return result

    def _record(self, rank: int, name: str, args: Any, kwargs: Any, seconds: float) -> None:
        """Keep what a new process needs to know of a call that has succeeded."""
        worker = self._workers[rank]
        if seconds and (num_tokens := _num_tokens(args)):
            self._slowest[name] = max(seconds / num_tokens, self._slowest.get(name, 0.0))
        if name == "update":
            worker.updates.append(_Update(args, kwargs, seconds))
        elif name == "load":
            worker.base, worker.num_in_base, worker.updates = args[0], 0, []
        elif name == "save" and kwargs.get("resumable", True):
            worker.num_in_save = worker.num_updates
        elif name == "offload":
            worker.offloaded += args[0]
        elif name == "onload":
            worker.offloaded = [part for part in worker.offloaded if part not in args[0]]

    async def _recover(self, rank: int, worker: _Worker, died: WorkerDied) -> None:
        """Bring a new process to the state of the lost one; raises `RunStopped` past the budget."""
        policy, name, cluster = self.policy, f"{self.role} {rank}", self.cluster
        assert policy is not None and isinstance(cluster, Replaceable)
        self._num_failed += not isinstance(died, NodeLost)
        if self._num_failed > (num := policy.max_replacements):
            raise RunStopped(f"{died} ({num} workers of {self.role} were replaced before, see ray.max_replacements)")
        self._num_replaced += 1
        worker.generation += 1
        repeats = f", and {len(worker.updates)} updates are repeated" if worker.updates else ""
        policy.notice(f"{name} is being replaced{repeats}: {died.what}")
        try:
            wait = NodeWait(journal=policy.journal, timeout_s=policy.node_timeout_s, notice=policy.notice)
            await wait.start(name, lambda: cluster.replace(rank))
            await self._watch(rank, LogprobModel.start)
            base, updates = worker.base, list(worker.updates)  # a save may have been completed during the start
            if base is not None:
                await self._watch(rank, Trainer.load, base)
            for update in updates:
                await self._watch(rank, Trainer.update, *update.args, **update.kwargs)
            if worker.offloaded:
                await self._watch(rank, Offloadable.offload, worker.offloaded)
        except WorkerDied as again:
            worker.lost = again
            return
        worker.lost, seconds = None, time.monotonic() - worker.lost_s
        event = WorkerReplaced(worker=name, reason=died.what, seconds=seconds, num_updates=len(updates))
        policy.journal.record(event)
        policy.notice(f"{name} was replaced in {seconds:.1f} s")

    async def _watch(self, rank: int, method: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any) -> Any:
        """The result of a call; kills the worker if it has hung, so that the call raises `WorkerDied`."""
        assert self.policy is not None
        slowest = self._slowest.get(method.__name__, math.inf)
        cluster, late = self.cluster, False
        limit_s, began, num_checks = _SLOWER * slowest * (_num_tokens(args) or math.inf), time.monotonic(), 0
        task = asyncio.ensure_future(self.cluster.at(rank, method, *args, **kwargs))
        try:
            while not (await asyncio.wait([task], timeout=self.policy.hang_timeout_s / _CHECKS))[0]:
                num_checks += 1
                elapsed_s = time.monotonic() - began
                if num_checks < _CHECKS or not isinstance(cluster, Killable):
                    continue
                before, late = late, elapsed_s > limit_s or cluster.stopped(rank)
                if late and not before and isinstance(cluster, HasStacks):
                    cluster.dump_stacks(rank)
                if late and before:
                    cluster.kill_worker(rank, f"did not respond for {elapsed_s:.0f} s (ray.hang_timeout_s)")
            return task.result()
        finally:
            task.cancel()  # in case this call was cancelled

    async def _snapshot(self, rank: int, worker: _Worker) -> None:
        async with worker.changing:
            generation, num_updates, began = worker.generation, worker.num_updates, time.monotonic()
            path = self._snapshots.with_name(f"{self._snapshots.name}-{rank}-{num_updates}")
            try:
                if worker.lost is not None:
                    return
                with as_write_failure(path):
                    path.mkdir(parents=True, exist_ok=True)
                    await self._watch(rank, Trainer.save, path)
                self._snapshot_took_s = time.monotonic() - began
                self._forget(worker.continue_from(path, num_updates))
            except WorkerDied as error:
                worker.mark_lost(error, generation)
            except WriteFailed as error:
                self._snapshot_took_s = max(self._snapshot_took_s, time.monotonic() - began)
                _LOG.warning("%s; a replacement repeats more updates", error.what)
            finally:
                if worker.base != path:
                    await asyncio.to_thread(shutil.rmtree, path, ignore_errors=True)

    def _forget(self, before: Path | None) -> None:
        """Delete a snapshot that is no longer needed; checkpoints are not deleted here."""
        if before is not None and before.parent == self._snapshots.parent:
            shutil.rmtree(before, ignore_errors=True)


def _num_tokens(args: Sequence[Any]) -> int:
    """Tokens of the batch that a call is about; 0 if it is about none."""
    return args[0].num_tokens if args and isinstance(args[0], Batch) else 0
