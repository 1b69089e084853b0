"""The limit on the memory of a whole program: one process that watches all programs of its owner.

A control group would be exact, but an owner without root, or in a container, seldom may create one. The watching
process starts with the first program and ends with its owner.

| call | waits for | woken by |
|---|---|---|
| `watch` | nothing | |
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

from roll.sandbox.base import ResourceLimits, SandboxFailed
from roll.sandbox.system import NOBODY

_ROOT = Path(__file__).parents[2]
_MAIN = f"import sys; sys.path.insert(0, {str(_ROOT)!r}); from roll.sandbox.memory_watch_main import main; main()"
_TRIES = 2
_SEND_S = 5.0
"""Longest time for a message to fit in; a process that takes longer hangs, and is replaced."""


class MemoryWatch:
    """The watching process of one owner, for use from any thread. A forked owner starts another."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The id of the process, once there is one."""
        return None if self._process is None else self._process.pid

    def watch(self, pid: int, limits: ResourceLimits, *, home: str = "") -> None:
        """Kill the process and its descendants if they use more than `limits.total_bytes`, until they end.

        `home` is the directory of a sandbox's files in memory, for a `pid` whose first child is its process 1.
        """
        message = json.dumps([pid, limits.total_bytes, limits.processes, limits.file_bytes, home]).encode()
        with self._lock:
            for _ in range(_TRIES):
                if self._socket is None:
                    self._start()
                assert self._socket is not None
                with contextlib.suppress(OSError):
                    self._socket.send(message)
                    return
                self._end()
        raise SandboxFailed("sandbox: the process that watches memory ends at its start; see its standard error")

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        user = NOBODY if os.geteuid() == 0 else os.geteuid()
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", _MAIN, str(theirs.fileno()), str(user)],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    start_new_session=True,
                )
            except OSError as error:
                ours.close()
                raise SandboxFailed(f"sandbox: cannot watch memory ({error}); check {sys.executable!r}") from None
        ours.settimeout(_SEND_S)
        self._socket = ours

    def _end(self) -> None:
        if self._socket is not None and self._process is not None:
            self._socket.close()
            self._process.kill()
            self._process.wait()
        self._socket = self._process = None


@functools.cache
def memory_watch(owner: int) -> MemoryWatch:
    """The watch of a process, by its id: a forked process must not use its parent's."""
    return MemoryWatch()
