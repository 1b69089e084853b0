"""Workers as Ray actors, on one or several nodes. Call `set_ray_environment` before importing it.

| call | waits for | woken by |
|---|---|---|
| `RayExecutor.start` | the connection, then every worker of every cluster | their first replies; `start_timeout_s` |
| `at`, `each`, `scatter` | the results; calls on one worker run concurrently | the results; a worker's death |
| `RayExecutor.stop` | the end of everything it started | |

If Ray itself goes away, every call in flight raises `RunStopped` within 15 s.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import socket
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray as _ray
from ray.exceptions import OutOfMemoryError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from roll.cluster.handle import Cluster, Method, P, R, W, gather_ranks
from roll.cluster.pending import PendingCall, PendingStarts
from roll.cluster.process_state import OUT_OF_MEMORY, is_stopped, signal_named
from roll.cluster.process_tree import end_processes, find_process_tree
from roll.cluster.ray.actor import STACKS, ProcessSetup, WorkerActor, WorkerSlot
from roll.cluster.ray.connection import CONNECT_S, init_ray, no_cluster
from roll.cluster.ray.environment import accepts_connections, check_interpreter, new_ray_folder, wait_until_unreachable
from roll.cluster.serialization import CallResult, Payload, pack, unpack
from roll.errors import ConfigError, RollError, RunStopped, WorkerDied, root_cause
from roll.tracking.log import announce
from roll.tracking.startup import StartProgress
from roll.types import Spec

ray: Any = _ray  # its type stubs are incomplete
_STORED = 100_000
"""Bytes above which a payload goes into the object store, where all workers of a node read the same copy."""
_LAST_LINE = 300
_FIX = "see there, then `roll resume` the run"
_GRACE_S = 3.0
_MISSES = 4
"""Failed checks in a row after which Ray counts as gone; after 60 s its library ends the process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayConfig:
    """Where the workers of one run are started, and where their logs are."""

    name: str
    """Name of the run."""
    directory: Path
    """Directory of the run; logs are in `logs/<role>-<rank>.log` below it."""
    fresh: bool = True
    """Whether existing logs belong to an earlier run and are deleted."""
    address: str | None = None
    """Address of an existing cluster; None: a local one is started and ends with the run."""
    start_timeout_s: float = 300.0
    watch_s: float = 3.0
    """Seconds between two checks that Ray is still reachable."""
    slots: Mapping[str, Sequence[WorkerSlot]] = field(default_factory=dict[str, Sequence[WorkerSlot]])
    """Slot of each rank, by role; Ray places the workers of other roles."""
    scratch: Path | None = None
    """Prefix of files that workers share at run time. Deleted at the end, unless it is the directory itself, which has
    the logs, and a worker died."""


class RayExecutor:
    """All clusters of a run, and their shared connection to Ray.

    If the process is already connected to Ray, that connection is used and left open.
    """

    def __init__(self, config: RayConfig) -> None:
        self.config = config
        self._clusters: list[RayCluster[Any]] = []
        self._connected = False
        self._starts = PendingStarts()
        self._watcher: asyncio.Task[None] | None = None
        self._ray_folder: Path | None = None
        """Temporary files of a local Ray cluster."""
        self._note = config.directory / ".ray"
        """Has the path of that folder while the cluster runs."""

    def cluster(self, worker: Spec, size: int, *, role: str, python: str | None = None) -> RayCluster[Any]:
        """`size` workers of a role, built from `worker`; `start` starts them."""
        cluster = RayCluster[Any](worker, size, role=role, config=self.config, python=python)
        self._clusters.append(cluster)
        return cluster

    async def start(self) -> None:
        """Start all workers; if one fails to start, stop everything and raise the reason."""
        try:
            for cluster in self._clusters:
                if cluster.python is not None and self.config.address is None:
                    await check_interpreter(cluster.python, f"{cluster.role}.python", ray.__version__)
            for log in (self.config.directory / "logs").glob("*.log") if self.config.fresh else ():
                log.unlink()
            if not ray.is_initialized():
                announce(
                    "starting Ray" if self.config.address is None else f"connecting to Ray ({self.config.address})"
                )
                with self._starts.record("Ray"):
                    await self._connect()
            self._watcher = asyncio.create_task(self._watch())
            async with asyncio.TaskGroup() as starting:
                for cluster in self._clusters:
                    starting.create_task(cluster.start())
        except BaseExceptionGroup as group:
            await self.stop()
            raise root_cause(group) from None
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End every worker, and Ray itself if it was started here."""
        if self._watcher is not None:
            self._watcher.cancel()
        for cluster in self._clusters:
            cluster.kill()
        self._end_ray()
        self._connected = False
        if self._ray_folder is not None:
            shutil.rmtree(self._ray_folder, ignore_errors=True)
            self._note.unlink(missing_ok=True)
        scratch, died = self.config.scratch, any(cluster.died for cluster in self._clusters)
        if scratch is None or (died and scratch == self.config.directory):
            return
        for path in scratch.parent.glob(f"{scratch.name}*"):
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)

    def pending_calls(self) -> list[PendingCall]:
        calls = [call for cluster in self._clusters for call in cluster.pending_calls()]
        return [*self._starts.pending_calls(), *calls]

    async def _watch(self) -> None:
        address = ray.get_runtime_context().gcs_address
        await wait_until_unreachable(address, self.config.watch_s, _MISSES, self._ray_folder)
        for cluster in self._clusters:
            cluster.fail(f"ray: the cluster at {address} is gone; start it again, then `roll resume` the run")

    async def _connect(self) -> None:
        address = self.config.address
        if address not in (None, "auto") and not await accepts_connections(address, CONNECT_S):
            raise no_cluster(address, "nothing listens there")  # Ray would retry for many minutes
        options: dict[str, Any] = {"address": address}
        if address is None:
            self._ray_folder = new_ray_folder(self._note)
            options = {
                "address": "local",  # never an unrelated cluster that happens to run
                "num_cpus": sum(cluster.size for cluster in self._clusters),
                "include_dashboard": False,
                "_temp_dir": str(self._ray_folder),
            }
        self._connected = True
        options["namespace"] = f"{self.config.name}-{uuid.uuid4().hex[:8]}"
        init_ray(options, self._end_ray, self.config.start_timeout_s)

    def _end_ray(self) -> None:
        """End the connection, and the processes of a local cluster."""
        processes = [] if self._ray_folder is None else find_process_tree(str(self._ray_folder))
        if self._connected:
            ray.shutdown()
        if self._ray_folder is not None:
            end_processes(processes, grace_s=_GRACE_S)


class RayCluster(Cluster[W]):
    """`Cluster` over `size` actors, each with one worker; calls on a worker run concurrently.

    Errors of a worker are raised here. Calls to a dead worker raise `WorkerDied` until `replace` has started another.
    """

    def __init__(self, worker: Spec, size: int, *, role: str, config: RayConfig, python: str | None = None) -> None:
        assert size > 0, "a cluster has at least one worker"
        self.role, self.config, self.python = role, config, python
        self._spec, self._size = worker, size
        self._actors: list[Any] = []
        self._packed_spec: Any = None
        self._processes: list[tuple[int, str]] = []
        """Process id and machine of each worker, by rank."""
        self.died = False
        """Whether a worker has ended unexpectedly."""
        self._in_flight: dict[asyncio.Future[Any], tuple[int, str, float]] = {}
        """Rank, method and start of each call."""
        self._failure: str | None = None
        self._killed: dict[asyncio.Future[Any], str] = {}
        """Calls to workers that `kill_worker` killed, with the reason."""

    @property
    def size(self) -> int:
        return self._size

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers, by rank."""
        return [pid for pid, _ in self._processes]

    def pending_calls(self) -> list[PendingCall]:
        """The calls in flight; those to workers that start have no pid."""
        calls: list[PendingCall] = []
        for rank, method, since in list(self._in_flight.values()):  # a copy: this runs in another thread
            pid, host = self._processes[rank] if rank < len(self._processes) else (0, "")
            other, worker = "" if host == socket.gethostname() else host, f"{self.role} {rank}"
            calls.append(PendingCall(worker=worker, method=method, since=since, pid=pid, host=other))
        return calls

    async def start(self) -> None:
        """Start all workers; raises what keeps one from starting."""
        self._actors = [self._actor(rank) for rank in range(self.size)]
        self._packed_spec = await _store(pack(self._spec))
        progress = StartProgress(f"processes of {self.role}", self.size)
        starts = (progress.track(self._build(rank)) for rank in range(self.size))
        self._processes = list(await asyncio.gather(*starts))

    async def replace(self, rank: int) -> None:
        """Start a new worker under the rank of a dead one; it appends to the same log."""
        self._check_running(rank)
        ray.kill(self._actors[rank])  # in case it still runs
        self._actors[rank] = self._actor(rank)
        self._processes[rank] = (0, "")  # unknown until it has started
        try:
            self._processes[rank] = await self._build(rank)
        except ConfigError as error:  # it could start before, so the configuration is not at fault
            raise RunStopped(f"{error}, then `roll resume` the run") from None

    async def restart(self, worker: Spec) -> None:
        """Start all workers again, built from `worker`."""
        for rank in range(self.size):
            self._signal(rank, signal.SIGKILL)
        self._spec, self._packed_spec = worker, await _store(pack(worker))
        await gather_ranks(self.replace(rank) for rank in range(self.size))

    def kill_worker(self, rank: int, reason: str) -> None:
        """Kill one process; Ray alone could not end a stopped one. Calls in flight raise `WorkerDied`."""
        stopped = "was stopped by a signal or a debugger, " if self.stopped(rank) else ""
        self._signal(rank, signal.SIGKILL)
        ray.kill(self._actors[rank])
        for future, (of, _, _) in list(self._in_flight.items()):
            if of == rank and future.cancel():
                self._killed[future] = f"(pid {self.pids[rank]}) {stopped}{reason} and was killed"

    def dump_stacks(self, rank: int) -> None:
        self._signal(rank, STACKS)

    def _signal(self, rank: int, number: int) -> None:
        pid, host = self._processes[rank]
        if host == socket.gethostname():
            signal_named(pid, f"ray::{self.role} {rank}", number)

    def stopped(self, rank: int) -> bool:
        pid, host = self._processes[rank]
        return host == socket.gethostname() and is_stopped(pid)

    def kill(self) -> None:
        """End every worker at once."""
        actors, self._actors = self._actors, []
        if ray.is_initialized():
            for actor in actors:
                ray.kill(actor)

    def fail(self, reason: str) -> None:
        """Raise `RunStopped` in all calls in flight and later ones, since Ray cannot reply any more."""
        self._failure = reason
        for future in list(self._in_flight):
            future.cancel()

    async def each(self, method: Method[P, R], *args: P.args, **kwargs: P.kwargs) -> list[R]:
        arguments = await _store(pack((args, kwargs)))
        return await gather_ranks(self._call(rank, method, arguments) for rank in range(self.size))

    async def at(self, rank: int, method: Method[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._call(rank, method, await _store(pack((args, kwargs))))

    def log(self, rank: int) -> Path:
        """Log file of this worker."""
        return self.config.directory / "logs" / f"{self.role}-{rank}.log"

    def _slot(self, rank: int) -> WorkerSlot:
        return (self.config.slots.get(self.role) or (WorkerSlot(),) * self.size)[rank]

    def _actor(self, rank: int) -> Any:
        """A new process, in which `_build` builds the worker."""
        options: dict[str, Any] = {"num_cpus": 1, "max_restarts": 0, "max_task_retries": 0}
        if self.python is not None:
            options["runtime_env"] = {"py_executable": self.python}
        if node := self._slot(rank).node:
            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node, soft=False)
        title = f"{self.role} {rank} ({self.config.name})"  # Ray shows the class as the process's title
        return ray.remote(type(title, (WorkerActor,), {})).options(**options).remote()

    def _check_running(self, rank: int) -> None:
        if not self._actors:
            raise WorkerDied(f"{self.role} {rank}: is not running; start the cluster first")
        if self._failure is not None:
            raise RunStopped(self._failure)

    async def _build(self, rank: int) -> tuple[int, str]:
        setup = ProcessSetup(
            name=f"{self.role} {rank}",
            log=self.log(rank).absolute(),
            folder=Path.cwd(),
            path=_extra_paths(),
            threads=os.environ.get("OMP_NUM_THREADS"),
            visible=self._slot(rank).visible,
        )
        timeout_s = self.config.start_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                reference = self._actors[rank].build.remote(setup, self._packed_spec, rank)
                return await self._result(rank, "its start", reference)
        except TimeoutError:
            free = ray.available_resources().get("CPU", 0)
            raise ConfigError(
                f"{self.role} {rank}: did not start within {timeout_s:g} s (Ray has {free:g} CPUs free); "
                "free some, lower the number of workers, or raise ray.start_timeout_s"
            ) from None
        except RollError:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise WorkerDied(f"{self.role} {rank}: cannot start ({reason}); see {self.log(rank)}") from error

    async def _call(self, rank: int, method: Callable[..., Any], arguments: Any) -> Any:
        self._check_running(rank)
        name = method.__name__
        return await self._result(rank, name, self._actors[rank].call.remote(name, arguments))

    async def _result(self, rank: int, what: str, reference: Any) -> Any:
        future = asyncio.ensure_future(reference)
        self._in_flight[future] = rank, what, time.monotonic()
        try:
            payload = await future
        except asyncio.CancelledError:
            if self._failure is not None:
                raise RunStopped(self._failure) from None
            if reason := self._killed.pop(future, ""):
                raise WorkerDied(
                    f"{self.role} {rank}: its process {reason} during {what}; log: {self.log(rank)}", _FIX
                ) from None
            if ray.is_initialized():
                ray.cancel(reference)  # also in the worker
            raise
        except RayTaskError as error:
            raise RuntimeError(f"{self.role} {rank}: {what} failed outside the worker") from error
        except RayError as error:
            raise WorkerDied(self._describe_death(rank, what, error), _FIX) from None
        finally:
            self._in_flight.pop(future, None)
        result: CallResult = unpack(payload)
        if not result.ok:
            raise result.value
        return result.value

    def _describe_death(self, rank: int, what: str, error: RayError) -> str:
        """One line about a worker's end, with Ray's reason and the last line of its log."""
        self.died = True
        pids = self.pids[rank : rank + 1] or re.findall(r"\bpid: (\d+)", str(error))  # unknown until it has started
        pid = f" (pid {pids[0]})" if pids else ""
        log = self.log(rank)
        lines = log.read_text(encoding="utf-8", errors="replace").split("\n") if log.is_file() else []
        last = next((line.strip() for line in reversed(lines) if line.strip()), "nothing")
        return (
            f"{self.role} {rank}: its process{pid} ended during {what}; {_death_reason(error)}; "
            f"{log} ends with: {last[:_LAST_LINE]}"
        )


def _death_reason(error: RayError) -> str:
    """Ray's reason for a worker's end in one line; Ray reports no signal."""
    summary, _, _ = str(error).partition("\n")
    if isinstance(error, OutOfMemoryError):
        return f"Ray killed it for lack of memory: {summary[:_LAST_LINE]}"
    detail = str(error).partition("Worker exit detail: ")[2].partition("\n")[0] or summary
    reason = detail.partition(" Some common causes")[0].rstrip(". ")[:_LAST_LINE]
    return f"{reason} (if its log has no error, {OUT_OF_MEMORY})"


async def _store(payload: Payload) -> Any:
    """The payload itself, or its reference in the object store if it is large; storing runs in a thread."""
    if payload.num_bytes <= _STORED:
        return payload.compact
    return await asyncio.to_thread(ray.put, payload.compact)


def _extra_paths() -> tuple[str, ...]:
    """Entries of `sys.path` outside this interpreter's installation; a worker has an installation for itself."""
    entries = [Path(entry).absolute() for entry in sys.path]
    installation = {Path(sys.prefix), Path(sys.base_prefix), Path(sys.exec_prefix)}
    return tuple(str(entry) for entry in entries if not any(entry.is_relative_to(prefix) for prefix in installation))
