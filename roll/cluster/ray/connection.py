"""The connection of this process to a Ray cluster. Call `set_ray_environment` before importing it."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray as _ray

from roll.cluster.ray.environment import start_repeatedly
from roll.cluster.serialization import Payload
from roll.errors import NoCluster

ray: Any = _ray  # its type stubs are incomplete
CONNECT_S = 10.0
"""Seconds in which the address of a cluster must accept a connection."""
_STORED = 100_000
"""Bytes above which a payload goes into the object store, where all workers of a node read the same copy."""


def wait_for_nodes(
    address: str, enough: Callable[[Sequence[Mapping[str, Any]]], bool], timeout_s: float
) -> list[Mapping[str, Any]]:
    """Ray's description of the cluster's nodes, once they are `enough` or the timeout has passed."""
    connect = not ray.is_initialized()
    if connect:
        try:
            if address != "auto":  # Ray would retry for many minutes
                host, _, port = address.rpartition(":")
                socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
        except (OSError, ValueError, OverflowError) as error:
            raise no_cluster(address, str(error).partition("\n")[0]) from None
        init_ray({"address": address}, ray.shutdown, timeout_s)
    try:
        end = time.monotonic() + timeout_s
        while not enough(nodes := ray.nodes()) and time.monotonic() < end:
            time.sleep(1.0)
        return nodes
    finally:
        if connect:
            ray.shutdown()


def init_ray(options: Mapping[str, Any], clean_up: Callable[[], None], timeout_s: float) -> None:
    """Connect this process to Ray, which starts it for the address `local`."""
    address = None if options["address"] == "local" else options["address"]
    try:
        start_repeatedly(lambda: ray.init(**options, log_to_driver=False, logging_level="error"), clean_up, timeout_s)
    except TimeoutError as error:
        where = "here" if address is None else f"at {address}"
        known = address is None or "RAY_AUTH_MODE" in os.environ
        token = "" if known else "set RAY_AUTH_MODE=token if it has a token, "
        fix = f"{token}raise it, or free the machine"
        raise NoCluster(f"ray.start_timeout_s: Ray {where} was not ready in {timeout_s:g} s ({error}); {fix}") from None
    except Exception as error:  # noqa: BLE001 - Ray raises no narrower type
        raise no_cluster(address, str(error).partition("\n")[0]) from None


def no_cluster(address: str | None, reason: str) -> NoCluster:
    """The error for a cluster that cannot be started (address None) or reached."""
    if address is None:
        fix = "start one with `ray start --head`, and set ray.address to auto"
        return NoCluster(f"ray: no cluster could be started here ({reason}); {fix}")
    fix = "start one with `ray start --head`, or leave ray.address out"
    return NoCluster(f"ray.address: no Ray cluster at {address} ({reason}); {fix}")


async def store(payload: Payload) -> Any:
    """The payload itself, or its reference in the object store if it is large; storing runs in a thread."""
    if payload.num_bytes <= _STORED:
        return payload.compact
    return await asyncio.to_thread(ray.put, payload.compact)
