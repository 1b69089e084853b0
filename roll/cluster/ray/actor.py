"""The other end of `RayCluster`: an actor that makes one worker and does what it is asked, calls side by side.

Nothing here imports Ray, and nothing imports torch before the process is set up as it was told.
"""

from __future__ import annotations

import faulthandler
import importlib
import inspect
import os
import socket
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roll.allocator import keep_freed_memory
from roll.cluster.serialization import Answer, Parcel, packed, unpacked
from roll.errors import ConfigError, RollError

_THREADS, _GPUS = "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """Where one worker lives."""

    node: str = ""
    """Ray's id of the machine; empty: any that has room."""
    visible: tuple[int, ...] | None = None
    """The GPUs of that machine that its process sees; None: all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What the process of a worker takes over from the one that started it."""

    name: str
    """Role and rank, such as `actor_infer 1`."""
    log: Path
    folder: Path
    """The current directory, which paths in a file are relative to."""
    path: tuple[str, ...]
    """Where modules are looked for before the interpreter's own places."""
    threads: str | None
    """The controller's OMP_NUM_THREADS; Ray sets one of its own, which would change what torch computes."""
    visible: tuple[int, ...] | None = None
    """As in `Seat`."""


class Actor:
    """Gives an `Answer` to every call, packed."""

    def __init__(self) -> None:
        self._worker: Any = None
        self._name = ""

    async def make(self, setup: Setup, worker: Parcel | bytes, rank: int) -> Parcel | bytes:
        """Set the process up and make the worker; the answer is the process's id."""
        try:
            self._name = setup.name
            _settle(setup)
            call = unpacked(worker)
            module, _, attribute = call.name.partition(":")
            found = getattr(importlib.import_module(module), attribute)(rank, **call.arguments)
            self._worker = await found if inspect.isawaitable(found) else found
            return packed(Answer(True, os.getpid())).wire
        except Exception as error:  # noqa: BLE001 - whatever it is, the controller raises it
            return self._told(error)

    async def ask(self, method: str, given: Parcel | bytes, shard: Parcel | bytes | None = None) -> Parcel | bytes:
        """One call; a shard comes before the other arguments."""
        try:
            args, kwargs = unpacked(given)
            if shard is not None:
                args = (unpacked(shard), *args)
            return packed(Answer(True, await getattr(self._worker, method)(*args, **kwargs))).wire
        except Exception as error:  # noqa: BLE001 - whatever it is, the controller raises it
            return self._told(error)

    def _told(self, error: Exception) -> Parcel | bytes:
        """The error as it can travel, with where it came from; that is written down here as well."""
        traced = "".join(traceback.format_exception(error)).rstrip()
        sys.stderr.write(f"{traced}\n")
        if not isinstance(error, RollError):  # those end in one line
            error.add_note(f"in {self._name}:\n{traced}")
        try:
            return packed(Answer(False, error)).wire
        except TypeError:
            return packed(Answer(False, RuntimeError(f"{self._name}: {type(error).__name__}: {error}"))).wire


def _settle(setup: Setup) -> None:
    if not setup.folder.is_dir():
        raise ConfigError(
            f"{setup.name}: {setup.folder} is not on {socket.gethostname()}; "
            "start the run in a directory that every machine of the cluster sees"
        )
    setup.log.parent.mkdir(parents=True, exist_ok=True)
    with setup.log.open("a") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    faulthandler.enable()
    sys.stderr.write(f"{setup.name}: process {os.getpid()} on {socket.gethostname()}\n")
    os.chdir(setup.folder)
    sys.path[:0] = [entry for entry in setup.path if entry not in sys.path]
    if setup.threads is None:
        os.environ.pop(_THREADS, None)
    else:
        os.environ[_THREADS] = setup.threads
    if setup.visible is not None:
        # Where this machine gives Ray some of its GPUs only, they are counted among those.
        given = [each for each in os.environ.get(_GPUS, "").split(",") if each]
        named = [given[number] if number < len(given) else str(number) for number in setup.visible]
        os.environ[_GPUS] = ",".join(named)
    keep_freed_memory()
