"""The workers of an earlier controller that still live."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray.exceptions import RayError

from roll.cluster.process_state import logged_process, signal_named
from roll.cluster.ray.connection import ray
from roll.cluster.ray.keeping import KeptWorkers

_TAKE_UP_S = 30.0
"""Seconds in which the calls of the earlier controller must end in a worker; otherwise it is killed."""
SPARE = -1
"""Rank in the name of a spare. It keeps that name when it becomes a worker, so it is not taken up."""
_LEASE = "lease"
"""Ray runs calls of this group in a thread of their own."""


@dataclass(frozen=True, slots=True)
class LivingWorker:
    """A worker of an earlier controller that this one uses."""

    actor: Any
    process: tuple[int, str]
    """Process id and machine."""
    node: str
    """Ray's id of its node."""
    seconds: float
    """Time until the calls of the earlier controller had ended."""


def create_kept(actor: type, role: str, rank: int, kept: KeptWorkers, options: Mapping[str, Any]) -> Any:
    """An actor of this class that does not end with the controller."""
    unique = f"{role} {rank} {uuid.uuid4().hex[:8]}"  # the name of a killed actor stays in use for a moment
    detached = {**options, "name": unique, "namespace": kept.namespace, "lifetime": "detached"}
    return ray.remote(concurrency_groups={_LEASE: 1})(actor).options(**detached).remote(kept.seconds)


def renew(actor: Any) -> None:
    """Tell a kept actor that its controller is alive."""
    actor.renew.options(concurrency_group=_LEASE).remote()


def find_living(kept: KeptWorkers) -> dict[str, dict[int, Any]]:
    """The kept actors of earlier controllers, by role and rank; kills those that cannot be used."""
    living: dict[str, dict[int, Any]] = {}
    for entry in ray.util.list_named_actors(all_namespaces=True):
        if entry["namespace"] != kept.namespace:
            continue
        role, number, _ = entry["name"].split()
        try:
            actor, rank = ray.get_actor(entry["name"], kept.namespace), int(number)
        except ValueError:  # it has ended since
            continue
        if kept.take_up and rank != SPARE and rank not in living.setdefault(role, {}):
            living[role][rank] = actor
        else:
            ray.kill(actor)
    return living


async def take_up(
    living: Mapping[int, Any], identities: Sequence[str], logs: Sequence[Path], *, together: bool
) -> dict[int, LivingWorker]:
    """The workers that were built with the same identities and have no calls any more, by rank; the others are killed.

    `together`: all of them or none.
    """
    usable: dict[int, LivingWorker] = {}
    began = time.monotonic()

    async def ask(rank: int, actor: Any) -> None:
        with contextlib.suppress(RayError, TimeoutError):
            async with asyncio.timeout(_TAKE_UP_S):
                if (found := await actor.take_up.remote(identities[rank])) is not None:
                    pid, machine, node = found
                    usable[rank] = LivingWorker(actor, (pid, machine), node, time.monotonic() - began)

    living = {rank: living[rank] for rank in range(len(identities)) if rank in living}
    await asyncio.gather(*(ask(rank, actor) for rank, actor in living.items()))
    if together and len(usable) < len(identities):
        usable = {}
    for rank in living.keys() - usable.keys():
        ray.kill(living[rank])
        process = logged_process(logs[rank])
        if process is not None and process.machine == socket.gethostname():  # Ray cannot end a stopped one
            signal_named(process.pid, f"ray::{process.worker}", signal.SIGKILL)
    return usable
