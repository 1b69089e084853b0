"""Workers as Ray actors, on this machine or on many. The only file that imports Ray; call `settle_ray` before it does.

| call | waits for | woken by |
|---|---|---|
| `RayExecutor.start` | the connection, then every worker of every cluster | their first answers; `start_timeout_s` |
| `at`, `each`, `scatter`, `any` | the answers; calls on one worker run side by side | the answers; a worker's death |
| `RayExecutor.stop` | the end of what it has started | |

Where Ray itself goes away, whatever waits for an answer raises `RunStopped` within a quarter of a minute.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Concatenate, Generic

import ray as _ray
from ray.exceptions import OutOfMemoryError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from roll.cluster.handle import Method, P, R, S, W
from roll.cluster.interpreter import check_interpreter
from roll.cluster.process_tree import end, family_of
from roll.cluster.ray.actor import Actor, Seat, Setup
from roll.cluster.ray.watch import listens, until_unreachable
from roll.cluster.serialization import Answer, Parcel, packed, unpacked
from roll.errors import ConfigError, RollError, RunStopped, WorkerDied, leaf
from roll.types import Call

ray: Any = _ray  # its stubs say little
_STORED = 100_000
"""Bytes above which a parcel goes into the object store, from where all workers of a machine read the same copy."""
_LAST_WORDS = 300
_CONNECT_S, _GRACE_S = 10.0, 3.0
_MISSES = 4
"""How often Ray may not be there when it is looked for; after 60 s its library ends the process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where the workers of one run are started, and where they leave their logs."""

    name: str
    """Of the run."""
    directory: Path
    """Of the run; logs are in `logs/<role>-<rank>.log` below it."""
    fresh: bool = True
    """Whether logs that are there belong to an earlier run."""
    address: str | None = None
    """Of a cluster that is there; None: one is started on this machine, and ended with the run."""
    start_timeout_s: float = 300.0
    watch_s: float = 3.0
    """How often it is looked whether Ray is still there."""
    seats: Mapping[str, Sequence[Seat]] = field(default_factory=dict[str, Sequence[Seat]])
    """By role, where its workers live, rank by rank; those of no such role live anywhere."""
    scratch: Path | None = None
    """What workers share while they run, in this folder or in files whose names begin like it; removed at the end,
    unless it is the directory itself and one of them died, whose log is there."""


class RayExecutor:
    """All clusters of a run, and the connection to Ray that they share.

    A process that is connected to Ray already stays so: its cluster is used, and left running.
    """

    def __init__(self, site: Site) -> None:
        self.site = site
        self._clusters: list[RayCluster[Any]] = []
        self._connected = False
        self._watching: asyncio.Task[None] | None = None
        self._folder: Path | None = None
        """Ray's own."""

    def cluster(self, worker: Call, size: int, *, role: str, python: str | None = None) -> RayCluster[Any]:
        """`size` workers of a role, made as `worker` names them; `start` brings them up."""
        found = RayCluster[Any](worker, size, role=role, site=self.site, python=python)
        self._clusters.append(found)
        return found

    async def start(self) -> None:
        """Bring all workers up; if one cannot be, nothing is left running and why it cannot be is raised."""
        try:
            for cluster in self._clusters:
                if cluster.python is not None and self.site.address is None:
                    await check_interpreter(cluster.python, f"{cluster.role}.python", ray.__version__)
            for old in (self.site.directory / "logs").glob("*.log") if self.site.fresh else ():
                old.unlink()
            if not ray.is_initialized():
                await self._connect()
            self._watching = asyncio.create_task(self._watch())
            async with asyncio.TaskGroup() as starting:
                for cluster in self._clusters:
                    starting.create_task(cluster.start())
        except BaseExceptionGroup as group:
            await self.stop()
            raise leaf(group) from None
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End every worker, and Ray itself where it was started here."""
        if self._watching is not None:
            self._watching.cancel()
        for cluster in self._clusters:
            cluster.kill()
        started = [] if self._folder is None else family_of(str(self._folder))
        if self._connected:
            ray.shutdown()
            self._connected = False
        if self._folder is not None:
            end(started, grace_s=_GRACE_S)
            shutil.rmtree(self._folder, ignore_errors=True)
        scratch, died = self.site.scratch, any(cluster.died for cluster in self._clusters)
        if scratch is None or (died and scratch == self.site.directory):
            return
        for path in scratch.parent.glob(f"{scratch.name}*"):
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)

    async def _watch(self) -> None:
        where = ray.get_runtime_context().gcs_address
        await until_unreachable(where, every_s=self.site.watch_s, misses=_MISSES)
        for cluster in self._clusters:
            cluster.lose(f"ray: the cluster at {where} has gone away; start it again, then `roll resume` the run")

    async def _connect(self) -> None:
        address = self.site.address
        if address not in (None, "auto") and not await listens(address, _CONNECT_S):  # Ray would try for many minutes
            raise _nowhere(address, "nobody listens there")
        given: dict[str, Any] = {"address": address}
        if address is None:
            # The name of a socket may have 107 letters, so not below a run's directory.
            self._folder = Path(tempfile.mkdtemp(prefix="roll-ray-", dir="/tmp"))
            num_workers = sum(cluster.size for cluster in self._clusters)
            given = {
                "address": "local",  # never one that is there by chance
                "num_cpus": num_workers,
                "include_dashboard": False,
                "_temp_dir": str(self._folder),
            }
        self._connected = True
        try:
            ray.init(
                **given,
                namespace=f"{self.site.name}-{uuid.uuid4().hex[:8]}",
                log_to_driver=False,
                logging_level="error",
            )
        except Exception as error:  # noqa: BLE001 - one that starts too slowly raises no narrower one
            raise _nowhere(address, str(error).partition("\n")[0]) from None


class RayCluster(Generic[W]):
    """`Cluster` over `size` actors; each makes its worker as `worker` names it, and does many calls at once.

    What a worker raises is raised here. One that is gone raises `WorkerDied` until `replace` has put another there.
    """

    def __init__(self, worker: Call, size: int, *, role: str, site: Site, python: str | None = None) -> None:
        assert size > 0, "a cluster has at least one worker"
        self.role, self.site, self.python = role, site, python
        self._worker, self._size = worker, size
        self._actors: list[Any] = []
        self._call: Any = None
        """The worker's description, as it travels."""
        self._under_way = [0] * size
        self.pids: list[int] = []
        """Of the workers' processes, by rank."""
        self.died = False
        """Whether one of them ended unasked."""
        self._awaited: set[asyncio.Future[Any]] = set()
        self._lost: str | None = None

    @property
    def size(self) -> int:
        return self._size

    async def start(self) -> None:
        """Bring all workers up; raises what keeps one from starting."""
        self._actors = [self._actor(rank) for rank in range(self.size)]
        self._call = await _stored(packed(self._worker))
        self.pids = list(await asyncio.gather(*(self._make(rank) for rank in range(self.size))))

    async def replace(self, rank: int) -> None:
        """A fresh worker in the place of one that is gone, whose log it carries on."""
        self._check_running(rank)
        ray.kill(self._actors[rank])  # what may be left of it
        self._actors[rank] = self._actor(rank)
        self.pids[rank] = await self._make(rank)

    def kill(self) -> None:
        """End every worker, whatever it is doing."""
        actors, self._actors = self._actors, []
        if ray.is_initialized():
            for actor in actors:
                ray.kill(actor)

    def lose(self, why: str) -> None:
        """Let all calls, those under way and those to come, raise `RunStopped`: nobody would answer them."""
        self._lost = why
        for future in list(self._awaited):
            future.cancel()

    async def each(self, method: Method[P, R], *args: P.args, **kwargs: P.kwargs) -> list[R]:
        given = await _stored(packed((args, kwargs)))
        return list(await asyncio.gather(*(self._ask(rank, method, given) for rank in range(self.size))))

    async def scatter(
        self,
        method: Callable[Concatenate[Any, S, P], Awaitable[R]],
        shards: Sequence[S],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> list[R]:
        assert len(shards) == self.size, f"{len(shards)} shards for {self.size} workers"
        given = await _stored(packed((args, kwargs)))
        stored = await asyncio.gather(*(_stored(packed(shard)) for shard in shards))
        return list(await asyncio.gather(*(self._ask(rank, method, given, shard) for rank, shard in enumerate(stored))))

    async def at(self, rank: int, method: Method[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._ask(rank, method, await _stored(packed((args, kwargs))))

    async def any(self, method: Method[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await self.at(self._under_way.index(min(self._under_way)), method, *args, **kwargs)

    def log(self, rank: int) -> Path:
        """Where this worker writes."""
        return self.site.directory / "logs" / f"{self.role}-{rank}.log"

    def _seat(self, rank: int) -> Seat:
        seats = self.site.seats.get(self.role, ())
        return seats[rank] if seats else Seat()

    def _actor(self, rank: int) -> Any:
        """One more process; it is made a worker by `_make`."""
        options: dict[str, Any] = {"num_cpus": 1, "max_restarts": 0, "max_task_retries": 0}
        if self.python is not None:
            options["runtime_env"] = {"py_executable": self.python}
        if node := self._seat(rank).node:
            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node, soft=False)
        return ray.remote(Actor).options(**options).remote()

    def _check_running(self, rank: int) -> None:
        if not self._actors:
            raise WorkerDied(f"{self.role} {rank}: is not running; start the cluster first")
        if self._lost is not None:
            raise RunStopped(self._lost)

    async def _make(self, rank: int) -> int:
        setup = Setup(
            name=f"{self.role} {rank}",
            log=self.log(rank).absolute(),
            folder=Path.cwd(),
            path=_own_path(),
            threads=os.environ.get("OMP_NUM_THREADS"),
            visible=self._seat(rank).visible,
        )
        limit_s = self.site.start_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                return await self._answer(rank, "its start", self._actors[rank].make.remote(setup, self._call, rank))
        except TimeoutError:
            free = ray.available_resources().get("CPU", 0)
            raise ConfigError(
                f"{self.role} {rank}: did not start within {limit_s:g} s (Ray has {free:g} CPUs free); "
                "free some, lower the number of workers, or raise ray.start_timeout_s"
            ) from None
        except RollError:
            raise
        except Exception as error:
            what = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise WorkerDied(f"{self.role} {rank}: cannot start ({what}); see {self.log(rank)}") from error

    async def _ask(self, rank: int, method: Callable[..., Any], given: Any, shard: Any = None) -> Any:
        self._check_running(rank)
        name = method.__name__
        self._under_way[rank] += 1
        try:
            return await self._answer(rank, name, self._actors[rank].ask.remote(name, given, shard))
        finally:
            self._under_way[rank] -= 1

    async def _answer(self, rank: int, what: str, reference: Any) -> Any:
        future = asyncio.ensure_future(reference)
        self._awaited.add(future)
        try:
            parcel = await future
        except asyncio.CancelledError:
            if self._lost is not None:
                raise RunStopped(self._lost) from None
            if ray.is_initialized():
                ray.cancel(reference)  # there as well
            raise
        except RayTaskError as error:
            raise RuntimeError(f"{self.role} {rank}: {what} failed outside the worker") from error
        except RayError as error:
            raise WorkerDied(self._last_words(rank, what, error)) from None
        finally:
            self._awaited.discard(future)
        answer: Answer = unpacked(parcel)
        if not answer.fine:
            raise answer.found
        return answer.found

    def _last_words(self, rank: int, what: str, error: RayError) -> str:
        """What is known of a worker's end, in one line."""
        self.died = True
        why = "was killed for want of memory" if isinstance(error, OutOfMemoryError) else "ended"
        log = self.log(rank)
        lines = log.read_text(encoding="utf-8", errors="replace").split("\n") if log.is_file() else []
        last = next((line.strip() for line in reversed(lines) if line.strip()), "nothing")
        return (
            f"{self.role} {rank}: its process {why} during {what}; {log} ends with: {last[:_LAST_WORDS]}; "
            "see there, then `roll resume` the run"
        )


async def _stored(parcel: Parcel) -> Any:
    """The parcel, or where it lies in the object store if it is large; putting it there holds nobody up."""
    if parcel.num_bytes <= _STORED:
        return parcel.wire
    return await asyncio.to_thread(ray.put, parcel.wire)


def _own_path() -> tuple[str, ...]:
    """Where this process looks for modules beyond what belongs to its interpreter, which a worker has of its own."""
    places = [Path(entry).absolute() for entry in sys.path]
    theirs = {Path(sys.prefix), Path(sys.base_prefix), Path(sys.exec_prefix)}
    return tuple(str(place) for place in places if not any(place.is_relative_to(prefix) for prefix in theirs))


def nodes_at(
    address: str, enough: Callable[[Sequence[Mapping[str, Any]]], bool], limit_s: float
) -> list[Mapping[str, Any]]:
    """What Ray says of a cluster's machines, once they are `enough` or that time is over."""
    mine = not ray.is_initialized()
    if mine:
        try:
            if address != "auto":  # Ray would try for many minutes
                host, _, port = address.rpartition(":")
                socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
            ray.init(address=address, log_to_driver=False, logging_level="error")
        except (OSError, ValueError, OverflowError, RuntimeError) as error:
            raise _nowhere(address, str(error).partition("\n")[0]) from None
    try:
        end = time.monotonic() + limit_s
        while not enough(found := ray.nodes()) and time.monotonic() < end:
            time.sleep(1.0)
        return found
    finally:
        if mine:
            ray.shutdown()


def _nowhere(address: str | None, reason: str) -> ConfigError:
    where = "could be started here" if address is None else f"at {address}"
    how = "start one with `ray start --head`, or leave ray.address out"
    return ConfigError(f"ray.address: no Ray cluster {where} ({reason}); {how}")
