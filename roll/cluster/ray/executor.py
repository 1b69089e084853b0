"""All Ray workers of a run. Call `set_ray_environment` before importing it.

| call | waits for | woken by |
|---|---|---|
| `RayExecutor.start` | the connection, then every worker of every cluster | their first replies; `start_timeout_s` |
| `RayExecutor.stop` | the end of everything it started | |

If Ray itself goes away, every call in flight raises `RunStopped` within 15 s.
"""

from __future__ import annotations

import asyncio
import shutil
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from roll.cluster.move import Move
from roll.cluster.pending import PendingCall, PendingStarts
from roll.cluster.process_tree import end_processes, find_process_tree
from roll.cluster.ray.cluster import RayCluster
from roll.cluster.ray.config import RayConfig
from roll.cluster.ray.connection import CONNECT_S, init_ray, no_cluster, ray
from roll.cluster.ray.environment import (
    NOTE,
    accepts_connections,
    check_interpreter,
    new_ray_folder,
    wait_until_unreachable,
)
from roll.cluster.ray.head import find_or_start_head, mark_ready
from roll.cluster.ray.keeping import LeaseRenewal
from roll.cluster.ray.living import find_living
from roll.cluster.ray.nodes import Nodes
from roll.errors import root_cause
from roll.tracking.log import announce
from roll.types import Spec

_GRACE_S = 3.0
_MISSES = 4
"""Failed checks in a row after which Ray counts as gone; after 60 s its library ends the process."""
_CHECKS = 4
"""Checks per `hang_timeout_s`; a process has to be stopped at one more than these in a row."""


class RayExecutor:
    """All clusters of a run, and their shared connection to Ray.

    If the process is already connected to Ray, that connection is used and left open.
    """

    def __init__(self, config: RayConfig) -> None:
        self.config = config
        self._clusters: list[RayCluster[Any]] = []
        self._connected = False
        self._nodes = Nodes()
        self._starts = PendingStarts()
        self._watcher: asyncio.Task[None] | None = None
        self._ray_folder: Path | None = None
        """Temporary files of a local Ray cluster."""
        self._note = config.directory / NOTE
        """Has the path of that folder while the cluster runs."""
        self._renewal = LeaseRenewal(self._renew)

    def on_move(self, callback: Callable[[Move], None]) -> None:
        """Call this when the replacement of a worker was placed on another node."""
        self._nodes.on_move = callback

    def cluster(self, worker: Spec, size: int, *, role: str, python: str | None = None) -> RayCluster[Any]:
        """`size` workers of a role, built from `worker`; `start` starts them."""
        cluster = RayCluster[Any](worker, size, role=role, config=self.config, nodes=self._nodes, python=python)
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
            living = {} if self.config.kept is None else find_living(self.config.kept)
            self._renewal.start(0.0 if self.config.kept is None else self.config.kept.seconds)
            async with asyncio.TaskGroup() as starting:
                for cluster in self._clusters:
                    starting.create_task(cluster.start(living.get(cluster.role)))
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
        self._renewal.stop()
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

    @property
    def keeps(self) -> bool:
        return self.config.kept is not None

    def leave(self) -> None:
        """End the connection alone."""
        if self._watcher is not None:
            self._watcher.cancel()
        self._renewal.stop()
        if self._connected:
            ray.shutdown()
        self._connected = False

    @property
    def taken_up(self) -> dict[str, float]:
        return {f"{each.role} {rank}": took for each in self._clusters for rank, took in each.taken_up.items()}

    @property
    def started(self) -> dict[str, float]:
        return {f"{each.role} {rank}": took for each in self._clusters for rank, took in each.started.items()}

    def pending_calls(self) -> list[PendingCall]:
        calls = [call for cluster in self._clusters for call in cluster.pending_calls()]
        return [*self._starts.pending_calls(), *calls]

    async def _watch(self) -> None:
        address = ray.get_runtime_context().gcs_address
        others = [asyncio.create_task(self._leave_draining_nodes()), asyncio.create_task(self._kill_stopped())]
        try:
            await wait_until_unreachable(address, self.config.watch_s, _MISSES, self._ray_folder)
        finally:
            for task in others:
                task.cancel()
        for cluster in self._clusters:
            cluster.fail(f"ray: the cluster at {address} is gone; start it again, then `roll resume` the run")

    async def _kill_stopped(self) -> None:
        """Kill workers whose process is stopped, in every phase: while they are set up, nothing else looks for them."""
        limit_s, checks = self.config.hang_timeout_s, Counter[tuple[str, int]]()
        while True:
            await asyncio.sleep(limit_s / _CHECKS)
            for cluster in self._clusters:
                for rank in range(len(cluster.pids)):
                    worker = cluster.role, rank
                    checks[worker] = checks[worker] + 1 if cluster.stopped(rank) else 0
                    if checks[worker] > _CHECKS:
                        cluster.kill_worker(rank, f"did not respond for {limit_s:g} s (ray.hang_timeout_s)")
                        checks[worker] = 0

    async def _leave_draining_nodes(self) -> None:
        while self.config.address is not None:
            await asyncio.sleep(self.config.watch_s)
            if nodes := await self._nodes.draining():
                for cluster in self._clusters:
                    await cluster.leave(nodes)

    async def _connect(self) -> None:
        address, kept, timeout_s = self.config.address, self.config.kept, self.config.start_timeout_s
        if address not in (None, "auto") and not await accepts_connections(address, CONNECT_S):
            raise no_cluster(address, "nothing listens there")  # Ray would retry for many minutes
        options: dict[str, Any] = {"address": address}
        num_cpus = sum(cluster.size for cluster in self._clusters)
        if address is None and kept is not None:
            options["address"], self._ray_folder = await find_or_start_head(self._note, num_cpus, kept, timeout_s)
        elif address is None:
            self._ray_folder = new_ray_folder(self._note)
            options = {
                "address": "local",  # never an unrelated cluster that happens to run
                "num_cpus": num_cpus,
                "include_dashboard": False,
                "_temp_dir": str(self._ray_folder),
            }
        self._connected = True
        options["namespace"] = f"{self.config.name}-{uuid.uuid4().hex[:8]}"
        init_ray(options, self._end_ray if kept is None else ray.shutdown, timeout_s)
        if kept is not None and self._ray_folder is not None:
            mark_ready(self._ray_folder, options["address"], num_cpus)

    def _renew(self) -> None:
        for cluster in self._clusters:
            cluster.renew()

    def _end_ray(self) -> None:
        """End the connection, and the processes of a local cluster."""
        processes = [] if self._ray_folder is None else find_process_tree(str(self._ray_folder))
        if self._connected:
            ray.shutdown()
        if self._ray_folder is not None:
            end_processes(processes, grace_s=_GRACE_S if self.config.kept is None else 0.0)
