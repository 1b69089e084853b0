"""Environments in worker processes, many per process; one that blocks costs its process, not the run.

| call | waits for | woken by |
|---|---|---|
| `start` | every process and its imports | their answers; the timeout; too many deaths |
| `make` | a start slot, then a process, then the environment's start | an environment that has started or failed |
| `step` | the environment's result | the result; the process's death; cancellation |
| `close` | the same, at most `grace_s` | the same |
| `stop` | the end of every environment, at most `grace_s`, and of every process | their answers; the timeout |

An environment that is cancelled, for example by a timeout, is cancelled in its process too. A process that does not
respond within `grace_s` is killed; the other environments in it fail, each with its own attempt.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, TypeAlias, TypeVar

from roll.cluster.handle import Cluster, Replaceable
from roll.cluster.member import ClusterMember
from roll.cluster.pending import PendingCall, PendingStarts
from roll.cluster.process import ProcessWorker
from roll.cluster.replacement import FirstStart, Replacement, ReplacementReports
from roll.data.tools import ParsedResponse, Tool
from roll.envs.base import Env, StepResult
from roll.envs.worker import EnvWorker
from roll.errors import EnvFailed, WorkerDied
from roll.rollout.environments import StartLimiter, env_label
from roll.tracking.startup import StartProgress
from roll.types import Message, Spec, Task

T = TypeVar("T")
_MEGABYTE = 2**20
WORKER = Spec("roll.envs.worker:EnvWorker")
_NAME = "environment worker"
EnvProcess: TypeAlias = ProcessWorker[EnvWorker] | ClusterMember[EnvWorker]
StartWorker: TypeAlias = Callable[[int], Awaitable[EnvProcess]]
"""Starts a new worker with the given rank."""


async def start_process(rank: int) -> EnvProcess:
    """A `StartWorker`: a process on this machine."""
    return await ProcessWorker[EnvWorker].start(WORKER, rank, name=_NAME)


def cluster_workers(cluster: Cluster[EnvWorker]) -> StartWorker:
    """A `StartWorker`: workers of a running cluster; starting a rank again replaces its worker."""
    started: set[int] = set()

    async def member(rank: int) -> EnvProcess:
        if rank in started and isinstance(cluster, Replaceable):
            await cluster.replace(rank)
        started.add(rank)
        return ClusterMember(cluster, rank, name=_NAME, ping=EnvWorker.answer)

    return member


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvWorkerLimits:
    """Timeouts and memory limit of worker processes."""

    start_timeout_s: float = 300.0
    """For a process to start."""
    first_start: FirstStart = field(default_factory=FirstStart)
    grace_s: float = 10.0
    """For a process to respond, and for an environment to close."""
    memory_bytes: int | None = None
    """Memory above which a process is replaced once it is empty; above twice as much it is killed."""
    memory_poll_s: float = 1.0


@dataclass(slots=True, eq=False)
class _Worker:
    """One process and the number of its environments."""

    process: EnvProcess
    num_envs: int = 0
    suspected: bool = False
    """Whether a check that it still responds is running."""


class EnvPool:
    """Worker processes with environments. A process that dies fails the attempts in it, and is replaced."""

    def __init__(
        self,
        size: int,
        *,
        names: Sequence[str] = (),
        start_limit: int | None = None,
        limit_s: float | None = None,
        limits: EnvWorkerLimits | None = None,
        start_worker: StartWorker = start_process,
    ) -> None:
        """`names` are environments that every process imports when it starts."""
        assert size > 0, "a pool has at least one process"
        self.limits = limits or EnvWorkerLimits()
        self.num_replaced = 0
        """Processes that died, were killed, or grew too large."""
        self.replaced = ReplacementReports()
        self._num_reported = 0
        self._names, self._start_worker = tuple(names), start_worker
        self._starts = StartLimiter(start_limit, limit_s)
        self._pending_starts = PendingStarts()
        self._workers: list[_Worker | None] = [None] * size
        self._opening = [asyncio.Lock() for _ in range(size)]
        self._retired: list[_Worker] = []
        self._waiting = [0] * size
        """By rank, environments that wait for their process to start."""
        self._numbers = count()
        self._background: set[asyncio.Task[None]] = set()

    @property
    def pids(self) -> list[int]:
        """Pids of living processes, including those that will be replaced."""
        return [
            worker.process.pid
            for worker in (*self._workers, *self._retired)
            if worker is not None and not worker.process.exit_reason
        ]

    def pending_calls(self) -> list[PendingCall]:
        """The starts, and the calls in flight in processes of this machine; a cluster lists those of its workers."""
        processes = [worker.process for worker in (*self._workers, *self._retired) if worker is not None]
        calls = [call for each in processes if isinstance(each, ProcessWorker) for call in each.pending_calls()]
        return [*calls, *self._pending_starts.pending_calls()]

    async def start(self) -> None:
        ranks = range(len(self._workers))
        progress = StartProgress(f"processes of {_NAME}", len(ranks))
        first = self.limits.first_start
        starts = [first.run(partial(self._worker, rank), f"{_NAME} {rank}", self.replaced) for rank in ranks]
        await asyncio.gather(*map(progress.track, starts))
        if self.limits.memory_bytes is not None:
            self.spawn(self._watch_memory(self.limits.memory_bytes))

    async def stop(self) -> None:
        tasks = list(self._background)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        workers = [worker for worker in (*self._workers, *self._retired) if worker is not None]
        await asyncio.gather(*(self._end(worker) for worker in workers))
        self._workers = [None] * len(self._workers)
        self._retired = []

    async def make(self, spec: Spec, task: Task) -> Env:
        """A `MakeEnv`: in the process with the fewest environments."""
        return await self._starts.start(lambda: self._place(spec, task), env_label(spec, task))

    async def unusable_reason(self, spec: Spec, task: Task, *, tools: bool = True) -> str:
        """The answer of the first process; empty if that blocks or dies, as attempts will then report the error."""
        try:
            worker = await self._worker(0)
            async with asyncio.timeout(self.limits.start_timeout_s):
                return await worker.process.call(EnvWorker.unusable_reason, spec, task, tools=tools)
        except (WorkerDied, TimeoutError):
            return ""

    def drain_counts(self) -> dict[str, float]:
        """Processes replaced since the last call, if any."""
        num, self._num_reported = self.num_replaced - self._num_reported, self.num_replaced
        return {"envs/replaced": float(num)} if num else {}

    def leave(self, worker: _Worker) -> None:
        """Count one environment less; a retired process ends with its last one."""
        worker.num_envs -= 1
        if worker in self._retired and not worker.num_envs:
            self._retired.remove(worker)
            self.spawn(self._end(worker))

    def suspect(self, worker: _Worker) -> None:
        """Check that a process still responds, after a call in it was cancelled."""
        if not worker.suspected and not worker.process.exit_reason:
            worker.suspected = True
            self.spawn(self._check(worker))

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something in the background until the pool stops."""
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _place(self, spec: Spec, task: Task) -> Env:
        """Place an environment in the process with the fewest; suspected processes come last."""
        loads = [
            (False, waiting)
            if worker is None or worker.process.exit_reason
            else (worker.suspected, waiting + worker.num_envs)
            for worker, waiting in zip(self._workers, self._waiting, strict=True)
        ]
        rank = loads.index(min(loads))
        self._waiting[rank] += 1
        try:
            worker = await self._worker(rank)
        finally:
            self._waiting[rank] -= 1
        worker.num_envs += 1
        return _RemoteEnv(self, worker, next(self._numbers), spec, task)

    async def _worker(self, rank: int) -> _Worker:
        async with self._opening[rank]:
            worker = before = self._workers[rank]
            if worker is None or worker.process.exit_reason:
                self.num_replaced += worker is not None
                began = time.monotonic()
                with self._pending_starts.record(f"{_NAME} {rank}"):
                    worker = self._workers[rank] = _Worker(await self._start_process(rank))
                if before is not None:
                    reason, seconds = before.process.exit_reason, time.monotonic() - began
                    self.replaced.add(Replacement(worker=f"{_NAME} {rank}", reason=reason, seconds=seconds))
            return worker

    async def _start_process(self, rank: int) -> EnvProcess:
        timeout_s = self.limits.start_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                process = await self._start_worker(rank)
                try:
                    await process.call(EnvWorker.prepare, self._names)
                except BaseException:
                    process.kill("it could not start")
                    raise
        except TimeoutError:
            reason = f"did not start within {timeout_s:g} s; raise envs.start_timeout_s"
            raise WorkerDied(f"environment worker {rank}: {reason}") from None
        return process

    async def _check(self, worker: _Worker) -> None:
        alive = await worker.process.responds(self.limits.grace_s)
        worker.suspected = False
        if not alive:
            worker.process.kill(f"an environment in it did not respond within {self.limits.grace_s:g} s; it was killed")

    async def _end(self, worker: _Worker) -> None:
        with contextlib.suppress(WorkerDied, TimeoutError):
            async with asyncio.timeout(self.limits.grace_s):
                await worker.process.call(EnvWorker.stop)
        worker.process.kill("it was stopped")

    async def _watch_memory(self, limit: int) -> None:
        while True:
            await asyncio.sleep(self.limits.memory_poll_s)
            for worker in (*self._workers, *self._retired):
                size = 0 if worker is None or worker.process.exit_reason else worker.process.memory()
                if worker is not None and size > limit:
                    self._retire(worker, size, limit)

    def _retire(self, worker: _Worker, size: int, limit: int) -> None:
        """Give a process that is too large no more environments; kill it if it is twice too large."""
        if size > 2 * limit:
            used = f"it held {size // _MEGABYTE} MB of memory where {limit // _MEGABYTE} are allowed (envs.memory_mb)"
            worker.process.kill(f"{used}; it was killed")
        elif worker in self._workers:
            self._workers[self._workers.index(worker)] = None
            self.num_replaced += 1
            self._retired.append(worker)
            worker.num_envs += 1
            self.leave(worker)  # ends it at once if it is empty


class _RemoteEnv:
    """An `Env` in a process of the pool."""

    def __init__(self, pool: EnvPool, worker: _Worker, number: int, spec: Spec, task: Task) -> None:
        """`number` identifies the environment in its process."""
        self._pool, self._worker, self._number, self._spec, self._task = pool, worker, number, spec, task
        self._failed = self._closed = False
        self.tools: tuple[Tool, ...] = ()
        self.agents: tuple[str, ...] = ()

    async def start(self) -> tuple[Message, ...]:
        call = self._worker.process.call(EnvWorker.start, self._number, self._spec, self._task)
        messages, self.tools, self.agents = await self._await(call)
        return messages

    async def call(self, response: ParsedResponse) -> StepResult:
        return await self._await(self._worker.process.call(EnvWorker.call, self._number, response))

    async def step(self, response: str) -> StepResult:
        return await self._await(self._worker.process.call(EnvWorker.step, self._number, response))

    async def close(self) -> None:
        if self._closed:
            return
        self._closed, grace_s = True, self._pool.limits.grace_s
        try:
            async with asyncio.timeout(grace_s):
                await self._await(self._worker.process.call(EnvWorker.close, self._number))
        except WorkerDied:
            pass  # its death has closed it
        except TimeoutError:
            if not self._failed:
                raise TimeoutError(f"not closed within {grace_s:g} s (envs.grace_s)") from None
        except EnvFailed:
            if not self._failed:
                raise
        finally:
            self._pool.leave(self._worker)

    async def _await(self, result: Awaitable[T]) -> T:
        try:
            return await result
        except BaseException as error:
            self._failed = self._failed or not self._closed
            if isinstance(error, asyncio.CancelledError):
                self._pool.suspect(self._worker)
            raise
