"""The worker's end of `RayCluster`: an actor that builds one worker and runs its calls concurrently.

Only a worker of Ray imports Ray here, and nothing imports torch before the process is set up.
"""

from __future__ import annotations

import asyncio
import faulthandler
import hashlib
import importlib
import inspect
import os
import signal
import socket
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import roll
from roll.allocator import keep_freed_memory
from roll.cluster.handle import build_worker
from roll.cluster.ray.keeping import Lease
from roll.cluster.serialization import CallResult, Payload, pack, unpack
from roll.errors import ConfigError, EngineFailed, RollError, WorkerDied
from roll.planted import fail_if_planted
from roll.tracking.log import LogSettings, log_worker

STACKS = signal.SIGUSR1
"""A worker writes the stacks of its threads to its log on this signal."""
_POLL = "events"
"""A method that only waits, so that its cancellation changes nothing."""
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
    title: str
    """Title of the process, which Ray takes from the name of the actor's class."""
    log: Path
    logging: LogSettings
    folder: Path
    """The current directory, which relative paths in a file refer to."""
    path: tuple[str, ...]
    """Entries of `sys.path` that come before the interpreter's."""
    threads: str | None
    """The controller's OMP_NUM_THREADS; Ray sets another, which would change the results of torch."""
    visible: tuple[int, ...] | None = None
    """As in `WorkerSlot`."""
    identity: str = ""
    """The next controller takes this worker up if it asks for the same one."""


class WorkerActor:
    """Returns a packed `CallResult` for every call."""

    def __init__(self, lease_s: float | None = None) -> None:
        """`lease_s`: the process ends when it was not renewed for that time; None: it ends with its controller."""
        self._worker: Any = None
        self._name = self._identity = ""
        self._lease = None if lease_s is None else Lease(lease_s)
        self._started = self._failed = self._taken_up = False
        self._num_calls, self._idle = 0, asyncio.Event()

    async def renew(self) -> None:
        """The controller is alive. It runs in a thread of its own, so a busy worker does not delay it."""
        if self._lease is not None:
            self._lease.renew()

    async def take_up(self, identity: str) -> tuple[int, str, str] | None:
        """As the result of `build`, once the calls of the earlier controller have ended; None if it cannot be used."""
        while self._started and self._num_calls:
            self._idle.clear()
            await self._idle.wait()
        self._taken_up = usable = self._started and not self._failed and identity == self._identity
        return (os.getpid(), socket.gethostname(), _node_id()) if usable else None

    async def build_name(self) -> str:
        """The version of this process's library, which has to be the controller's where a worker joins a run."""
        return build_name()

    async def prepare(self, setup: ProcessSetup, module: str) -> None:
        """Import the module of a worker that `build` may build later."""
        _set_environment(setup)
        importlib.import_module(module)

    async def build(self, setup: ProcessSetup, worker: Payload | bytes, rank: int) -> Payload | bytes:
        """Set up the process and build the worker; the result is the process id, the machine and Ray's node id."""
        try:
            self._name, self._identity = setup.name, setup.identity
            type(self).__name__ = setup.title  # a spare has another one before
            _set_up(setup)
            built = build_worker(unpack(worker), rank)
            self._worker = await built if inspect.isawaitable(built) else built
            return pack(CallResult(True, (os.getpid(), socket.gethostname(), _node_id()))).compact
        except Exception as error:  # noqa: BLE001 - the controller raises any error
            return self._pack_error(error)

    async def call(self, method: str, arguments: Payload | bytes) -> Payload | bytes:
        """Call a method of the worker. `start` does nothing in one that was taken up."""
        self._num_calls += 1
        completed = False
        try:
            if self._worker is None:
                raise WorkerDied(f"{self._name or 'the worker'}: has not started yet (called for {method})")
            fail_if_planted("call", method)
            args, kwargs = unpack(arguments)
            if method == "start" and self._taken_up:
                result = None
            else:
                result = await getattr(self._worker, method)(*args, **kwargs)
            self._started = self._started or method == "start"
            completed = True
            return pack(CallResult(True, result)).compact
        except Exception as error:  # noqa: BLE001 - the controller raises any error
            completed = isinstance(error, EngineFailed)  # a refused request changes nothing
            return self._pack_error(error)
        except asyncio.CancelledError:
            completed = method == _POLL
            raise
        finally:
            self._failed = self._failed or not completed
            self._num_calls -= 1
            self._idle.set()

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


def build_name() -> str:
    """The version of the library with a digest of its sources."""
    digest, folder = hashlib.sha256(), Path(roll.__file__).parent
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes())
    return f"{roll.__version__} ({digest.hexdigest()[:8]})"


def _node_id() -> str:
    """Ray's id of the node of this process, which is a worker of Ray."""
    import ray

    context: Any = ray.get_runtime_context()
    return context.get_node_id()


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
    opening = f"{setup.name}: process {os.getpid()} on {socket.gethostname()}"
    log_worker(setup.name, setup.logging, sys.stderr, opening)
    _set_environment(setup)
    if setup.visible is not None:
        # If the node gives only some of its GPUs to Ray, indices refer to those.
        available = [each for each in os.environ.get(_GPUS, "").split(",") if each]
        names = [available[index] if index < len(available) else str(index) for index in setup.visible]
        os.environ[_GPUS] = ",".join(names)
    keep_freed_memory()


def _set_environment(setup: ProcessSetup) -> None:
    """What has to be set before torch is imported."""
    os.chdir(setup.folder)
    sys.path[:0] = [entry for entry in setup.path if entry not in sys.path]
    if setup.threads is None:
        os.environ.pop(_THREADS, None)
    else:
        os.environ[_THREADS] = setup.threads
