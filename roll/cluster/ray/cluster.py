"""Workers as Ray actors, on one or several nodes. Call `set_ray_environment` before importing it.

| call | waits for | woken by |
|---|---|---|
| `at`, `each`, `scatter` | the results; calls on one worker run concurrently | the results; a worker's death |
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from itertools import chain
from pathlib import Path
from typing import Any

from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from roll.cluster.handle import Cluster, Method, P, R, W, gather_ranks, present_ranks
from roll.cluster.pending import PendingCall
from roll.cluster.process_state import is_stopped, logged_process, signal_named
from roll.cluster.ray.actor import STACKS, ProcessSetup, WorkerActor, WorkerSlot, build_name
from roll.cluster.ray.config import RayConfig
from roll.cluster.ray.connection import ray, store
from roll.cluster.ray.death import describe_death
from roll.cluster.ray.environment import (
    extra_paths,
)
from roll.cluster.ray.living import SPARE, create_kept, renew, take_up
from roll.cluster.ray.nodes import Nodes, WorkerLocation
from roll.cluster.serialization import CallResult, pack, unpack
from roll.errors import ClusterLost, ConfigError, NoCluster, NodeLost, RollError, RunStopped, WorkerDied
from roll.tracking.startup import StartProgress
from roll.types import Spec

_FIX = "see there, then `roll resume` the run"


class RayCluster(Cluster[W]):
    """`Cluster` over `size` actors, each with one worker; calls on a worker run concurrently.

    Errors of a worker are raised here. Calls to a dead worker raise `WorkerDied` until `replace` has started another.
    """

    def __init__(
        self, worker: Spec, size: int, *, role: str, config: RayConfig, nodes: Nodes, python: str | None = None
    ) -> None:
        assert size > 0, "a cluster has at least one worker"
        self.role, self.config, self.python = role, config, python
        self._spec, self._size, self._nodes = worker, config.most.get(role, size), nodes
        self.absent = set(range(size, self._size))
        """Ranks without a worker, under which others join."""
        self._library = build_name() if role in config.most else ""
        """The controller's, before anybody changes its files; workers that join need the same one."""
        self._slots = list(config.slots.get(role) or (WorkerSlot(),) * size)
        nodes.slots |= {f"{role} {rank}": slot for rank, slot in enumerate(self._slots)}
        self._slots += self._slots[:1] * len(self.absent)
        self._node_of = [slot.node for slot in self._slots]
        """Node of each worker; empty if it is not known yet."""
        self._actors: list[Any] = []
        self._spares: dict[str, list[Any]] = {}
        """Processes with the modules of a worker imported, by node; one is started after each replacement."""
        self._named_calls: dict[int, Any] = {}
        """Calls to workers that were spares; Ray shows the name of a call as the process's title while it runs."""
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
        self._kept = config.kept if config.kept is not None and role in config.kept.roles else None
        self.taken_up: dict[int, float] = {}
        """Seconds in which each worker of an earlier controller was taken up, by rank."""
        self.started: dict[int, float] = {}
        """Seconds in which each other worker was started."""

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

    async def start(self, living: Mapping[int, Any] | None = None) -> None:
        """Start all workers, or take up `living` ones, by rank; raises what keeps one from starting."""
        self._packed_spec = await store(pack(self._spec))
        together = self._kept is not None and self.role in self._kept.together
        identities, logs = zip(*((self._identity(rank), self.log(rank)) for rank in range(self.size)), strict=True)
        known = await take_up(living or {}, identities, logs, together=together)
        self.taken_up = {rank: worker.seconds for rank, worker in known.items()}
        self._actors = [
            known[rank].actor if rank in known else None if rank in self.absent else self._actor(rank)
            for rank in range(self.size)
        ]
        self._processes = [(0, "")] * self.size
        ranks, began = present_ranks(self), time.monotonic()
        progress = StartProgress(f"processes of {self.role}", len(ranks))

        async def start(rank: int) -> None:
            if rank in known:
                self._node_of[rank], self._processes[rank] = known[rank].node, known[rank].process
                return
            self._processes[rank] = await self._build(rank)
            self.started[rank] = time.monotonic() - began

        await asyncio.gather(*(progress.track(start(rank)) for rank in ranks))

    def _identity(self, rank: int) -> str:
        """Of the worker that the controller starts under a rank; one that joined later is not taken up."""
        return (
            ""
            if self._kept is None or rank in self.absent
            else f"{self._kept.identity} {self.size} {self.python} {self._slots[rank]}"
        )

    def renew(self) -> None:
        """Tell workers that outlive their controller that it is alive; may be called in any thread."""
        for actor in (*self._actors, *chain(*self._spares.values())) if self._kept is not None else ():
            if actor is not None:
                renew(actor)

    async def replace(self, rank: int) -> None:
        """Start a new worker under the rank of a dead one; it appends to the same log.

        It may be on another node; raises `NoRoom` if its node is lost and no other has room.
        """
        self._check_running(rank)
        ray.kill(self._actors[rank])  # in case it still runs
        async with self._nodes.place(self._location(rank)) as slot:
            await self._start_again(rank, slot)

    async def add(self, rank: int) -> None:
        """Start a worker under an absent rank; raises `NoRoom`, or `WorkerDied` where its library is another one."""
        name = f"{self.role} {rank}"
        self._check_running(next(iter(present_ranks(self)), 0))
        async with self._nodes.place_new(name, self._slots[rank]) as slot:
            self._slots[rank], self._node_of[rank] = slot, slot.node
            self._actors[rank] = self._actor(rank)
            self.absent.discard(rank)
            await self._check_build(rank)
            self._processes[rank] = await self._build(rank)

    async def remove(self, rank: int, *, refused: bool = False) -> None:
        """End a worker and free its devices; no worker is added on the node of a `refused` one any more."""
        if rank in self.absent:
            return
        self.absent.add(rank)
        self.kill_worker(rank, "left the run")
        if refused:
            self._nodes.refused.add(self._node_of[rank])
        self._nodes.slots.pop(f"{self.role} {rank}", None)
        self._named_calls.pop(rank, None)
        self._actors[rank], self._processes[rank], self._node_of[rank] = None, (0, ""), ""

    async def draining(self) -> set[int]:
        """Ranks of workers on nodes that are being drained."""
        nodes = await self._nodes.draining()
        return {rank for rank in present_ranks(self) if self._node_of[rank] in nodes}

    def node(self, rank: int) -> str:
        """The node of a worker, as `address:port`; empty if it has none."""
        return self._nodes.describe(self._node_of[rank])

    async def _check_build(self, rank: int) -> None:
        try:
            async with asyncio.timeout(self.config.start_timeout_s):
                theirs = await self._actors[rank].build_name.remote()
        except TimeoutError:
            raise WorkerDied(f"{self.role} {rank}: did not start within {self.config.start_timeout_s:g} s") from None
        except RayTaskError:  # an older release cannot even answer
            theirs = "another release"
        except RayError as error:
            raise WorkerDied(f"{self.role} {rank}: {describe_death(error, 0, 'its start', self.log(rank))}") from None
        if theirs != self._library:
            raise WorkerDied(f"{self.role} {rank}: {self.node(rank)} has roll {theirs}, the run has {self._library}")

    async def restart(self, worker: Spec) -> None:
        """Start all workers again, built from `worker`, or none if one has no room."""
        self._check_running(0)
        for rank in range(self.size):
            self._signal(rank, signal.SIGKILL)
            ray.kill(self._actors[rank])
        self._spec, self._packed_spec = worker, await store(pack(worker))
        async with AsyncExitStack() as stack:
            places = [self._nodes.place(self._location(rank), failed=False) for rank in range(self.size)]
            slots = [await stack.enter_async_context(place) for place in places]
            await gather_ranks(self._start_again(rank, slot) for rank, slot in enumerate(slots))

    async def _start_again(self, rank: int, slot: WorkerSlot) -> None:
        self._slots[rank], self._node_of[rank] = slot, slot.node
        spares = self._spares.setdefault(slot.node, [])
        self._named_calls.pop(rank, None)
        if spares:
            self._actors[rank] = spares.pop()
            self._named_calls[rank] = self._actors[rank].call.options(name=f"{self._title(rank)}.call")
        else:
            self._actors[rank] = self._actor(rank)
        self._processes[rank] = (0, "")  # unknown until it has started
        try:
            self._processes[rank] = await self._build(rank)
        except ConfigError as error:  # it could start before, so the configuration is not at fault
            raise RunStopped(f"{error}, then `roll resume` the run") from None
        if self._actors and self.config.address is None:  # a spare has no share of the CPUs of an existing cluster
            spares.append(self._actor(rank, spare=True))
            spares[-1].prepare.remote(self._setup(rank), self._spec.name.partition(":")[0])

    async def leave(self, nodes: set[str]) -> None:
        """Kill the workers on nodes that are being drained and for which another node has room."""
        if self.role in self.config.most:
            return  # they leave with their requests
        for rank, node in enumerate(self._node_of):
            if node in nodes and await self._nodes.plan_move(self._location(rank)):
                self.kill_worker(rank, "is on a node that is being drained")

    def _location(self, rank: int) -> WorkerLocation:
        return WorkerLocation(worker=f"{self.role} {rank}", slot=self._slots[rank], node=self._node_of[rank])

    def kill_worker(self, rank: int, reason: str) -> None:
        """Kill one process; Ray alone could not end a stopped one. Calls in flight raise `WorkerDied`."""
        stopped = "was stopped by a signal or a debugger, " if self.stopped(rank) else ""
        self._signal(rank, signal.SIGKILL)
        ray.kill(self._actors[rank])
        for future, (of, _, _) in list(self._in_flight.items()):
            if of == rank and future.cancel():
                self._killed[future] = f"(pid {self._process(rank)[0]}) {stopped}{reason} and was killed"

    def dump_stacks(self, rank: int) -> None:
        self._signal(rank, STACKS)

    def _process(self, rank: int) -> tuple[int, str]:
        """Id and machine of a worker's process; while it starts, those that its log names."""
        if self._processes[rank][0]:
            return self._processes[rank]
        logged = logged_process(self.log(rank))
        return (0, "") if logged is None else (logged.pid, logged.machine)

    def _signal(self, rank: int, number: int) -> None:
        pid, host = self._process(rank)
        if host == socket.gethostname():
            signal_named(pid, f"ray::{self.role} {rank}", number)

    def stopped(self, rank: int) -> bool:
        """Whether a signal or a debugger has stopped a worker's process; False for one on another machine."""
        pid, host = self._process(rank)
        return rank not in self.absent and host == socket.gethostname() and is_stopped(pid)

    def kill(self) -> None:
        """End every worker at once."""
        actors, self._actors = [*self._actors, *chain(*self._spares.values())], []
        self._spares.clear()
        if ray.is_initialized():
            for actor in filter(None, actors):
                ray.kill(actor)

    def fail(self, reason: str) -> None:
        """Raise `RunStopped` in all calls in flight and later ones, since Ray cannot reply any more."""
        self._failure = reason
        for future in list(self._in_flight):
            future.cancel()

    async def each(self, method: Method[P, R], *args: P.args, **kwargs: P.kwargs) -> list[R]:
        arguments = await store(pack((args, kwargs)))
        return await gather_ranks(self._call(rank, method, arguments) for rank in present_ranks(self))

    async def at(self, rank: int, method: Method[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._call(rank, method, await store(pack((args, kwargs))))

    def log(self, rank: int) -> Path:
        """Log file of this worker."""
        return self.config.directory / "logs" / f"{self.role}-{rank}.log"

    def _actor(self, rank: int, *, spare: bool = False) -> Any:
        """A new process, in which `_build` builds the worker."""
        options: dict[str, Any] = {"num_cpus": 0 if spare else 1, "max_restarts": 0, "max_task_retries": 0}
        if self.python is not None:
            options["runtime_env"] = {"py_executable": self.python}
        if node := self._slots[rank].node:
            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node, soft=False)
        title = f"{self.role} spare ({self.config.name})" if spare else self._title(rank)
        actor = type(title, (WorkerActor,), {})
        if self._kept is not None:
            return create_kept(actor, self.role, SPARE if spare else rank, self._kept, options)
        return ray.remote(actor).options(**options).remote()

    def _check_running(self, rank: int) -> None:
        if not self._actors:
            raise WorkerDied(f"{self.role} {rank}: is not running; start the cluster first")
        if self._actors[rank] is None:
            raise WorkerDied(f"{self.role} {rank}: has left the run")
        if self._failure is not None:
            raise ClusterLost(self._failure)

    def _title(self, rank: int) -> str:
        return f"{self.role} {rank} ({self.config.name})"

    def _setup(self, rank: int) -> ProcessSetup:
        return ProcessSetup(
            name=f"{self.role} {rank}",
            title=self._title(rank),
            log=self.log(rank).absolute(),
            logging=self.config.logging,
            folder=Path.cwd(),
            path=extra_paths(),
            threads=os.environ.get("OMP_NUM_THREADS"),
            visible=self._slots[rank].visible,
            identity=self._identity(rank),
        )

    async def _build(self, rank: int) -> tuple[int, str]:
        timeout_s = self.config.start_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                reference = self._actors[rank].build.remote(self._setup(rank), self._packed_spec, rank)
                *process, self._node_of[rank] = await self._result(rank, "its start", reference)
                return tuple(process)
        except TimeoutError:
            free = ray.available_resources().get("CPU", 0)
            raise NoCluster(
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
        call = self._named_calls.get(rank) or self._actors[rank].call
        return await self._result(rank, name, call.remote(name, arguments))

    async def _result(self, rank: int, what: str, reference: Any) -> Any:
        future = asyncio.ensure_future(reference)
        self._in_flight[future] = rank, what, time.monotonic()
        try:
            payload = await future
        except asyncio.CancelledError:
            if self._failure is not None:
                raise ClusterLost(self._failure) from None
            if reason := self._killed.pop(future, ""):
                line = f"{self.role} {rank}: its process {reason} during {what}; log: {self.log(rank)}"
                raise await self._death(rank, what, line) from None
            if ray.is_initialized():
                ray.cancel(reference)  # also in the worker
            raise
        except RayTaskError as error:
            raise RuntimeError(f"{self.role} {rank}: {what} failed outside the worker") from error
        except RayError as error:
            self.died = True
            (pid,) = self.pids[rank : rank + 1] or [0]
            line = f"{self.role} {rank}: {describe_death(error, pid, what, self.log(rank))}"
            raise await self._death(rank, what, line) from None
        finally:
            self._in_flight.pop(future, None)
        result: CallResult = unpack(payload)
        if not result.ok:
            raise result.value
        return result.value

    async def _death(self, rank: int, what: str, line: str) -> RollError:
        """The error about a dead worker: `line`, or the loss of its node or of Ray if that is the cause."""
        while (cause := await self._nodes.unusable(self._node_of[rank])) is None:
            if self._failure is not None:
                return ClusterLost(self._failure)
            await asyncio.sleep(self.config.watch_s)
        if not cause:
            return WorkerDied(line, _FIX)
        return NodeLost(f"{self.role} {rank}: {cause}, during {what}; log: {self.log(rank)}", _FIX)
