"""The worker's end of `RayCluster`: an actor that builds one worker and runs its calls concurrently.

Nothing here imports Ray, and nothing imports torch before the process is set up.
"""

from __future__ import annotations

import faulthandler
import inspect
import os
import signal
import socket
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roll.allocator import keep_freed_memory
from roll.cluster.handle import build_worker
from roll.cluster.serialization import CallResult, Payload, pack, unpack
from roll.errors import ConfigError, RollError, WorkerDied
from roll.planted import fail_if_planted

STACKS = signal.SIGUSR1
"""A worker writes the stacks of its threads to its log on this signal."""
_THREADS, _GPUS = "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSlot:
    """Node and devices of one worker."""

    node: str = ""
    """Ray's id of the node; empty: any node with free resources."""
    visible: tuple[int, ...] | None = None
    """GPUs of that node that the process sees; None: all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSetup:
    """Settings that a worker's process takes over from the controller."""

    name: str
    """Role and rank, such as `actor_infer 1`."""
    log: Path
    folder: Path
    """The current directory, which relative paths in a file refer to."""
    path: tuple[str, ...]
    """Entries of `sys.path` that come before the interpreter's."""
    threads: str | None
    """The controller's OMP_NUM_THREADS; Ray sets another, which would change the results of torch."""
    visible: tuple[int, ...] | None = None
    """As in `WorkerSlot`."""


class WorkerActor:
    """Returns a packed `CallResult` for every call."""

    def __init__(self) -> None:
        self._worker: Any = None
        self._name = ""

    async def build(self, setup: ProcessSetup, worker: Payload | bytes, rank: int) -> Payload | bytes:
        """Set up the process and build the worker; the result is the process id and the machine."""
        try:
            self._name = setup.name
            _set_up(setup)
            built = build_worker(unpack(worker), rank)
            self._worker = await built if inspect.isawaitable(built) else built
            return pack(CallResult(True, (os.getpid(), socket.gethostname()))).compact
        except Exception as error:  # noqa: BLE001 - the controller raises any error
            return self._pack_error(error)

    async def call(self, method: str, arguments: Payload | bytes) -> Payload | bytes:
        """Call a method of the worker."""
        try:
            if self._worker is None:
                raise WorkerDied(f"{self._name or 'the worker'}: has not started yet (called for {method})")
            fail_if_planted("call", method)
            args, kwargs = unpack(arguments)
            return pack(CallResult(True, await getattr(self._worker, method)(*args, **kwargs))).compact
        except Exception as error:  # noqa: BLE001 - the controller raises any error
            return self._pack_error(error)

    def _pack_error(self, error: Exception) -> Payload | bytes:
        """The error with its traceback, which is also written to the worker's log."""
        trace = "".join(traceback.format_exception(error)).rstrip()
        sys.stderr.write(f"{trace}\n")
        if not isinstance(error, RollError):  # a `RollError` is shown in one line
            error.add_note(f"in {self._name}:\n{trace}")
        try:
            return pack(CallResult(False, error)).compact
        except TypeError:
            return pack(CallResult(False, RuntimeError(f"{self._name}: {type(error).__name__}: {error}"))).compact


def _set_up(setup: ProcessSetup) -> None:
    if not setup.folder.is_dir():
        raise ConfigError(
            f"{setup.name}: {setup.folder} does not exist on {socket.gethostname()}; "
            "start the run in a directory that every node of the cluster can access"
        )
    setup.log.parent.mkdir(parents=True, exist_ok=True)
    with setup.log.open("a") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    faulthandler.enable()
    faulthandler.register(STACKS)
    sys.stderr.write(f"{setup.name}: process {os.getpid()} on {socket.gethostname()}\n")
    os.chdir(setup.folder)
    sys.path[:0] = [entry for entry in setup.path if entry not in sys.path]
    if setup.threads is None:
        os.environ.pop(_THREADS, None)
    else:
        os.environ[_THREADS] = setup.threads
    if setup.visible is not None:
        # If the node gives only some of its GPUs to Ray, indices refer to those.
        available = [each for each in os.environ.get(_GPUS, "").split(",") if each]
        names = [available[index] if index < len(available) else str(index) for index in setup.visible]
        os.environ[_GPUS] = ",".join(names)
    keep_freed_memory()
