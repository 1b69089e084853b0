"""Finds and ends processes by command line, environment or parent, also if their parent has ended."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_EVERY_S = 0.05
_SHARED = "/dev/shm/"
_CHILDREN_S = 10.0
"""Most seconds that killed children may take to end; one that waits for a device cannot be killed."""
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


@dataclass(frozen=True, slots=True)
class TrackedProcess:
    """One process. Its pid may be reused later; the pair of pid and start time may not."""

    pid: int
    start_time: str

    @property
    def alive(self) -> bool:
        return _start_and_parent(self.pid)[0] == self.start_time


def find_process_tree(marker: str) -> list[TrackedProcess]:
    """Processes with `marker` in their command line, and all their descendants; empty without /proc."""
    parents = {int(path.name): _start_and_parent(int(path.name))[1] for path in Path("/proc").glob("[0-9]*")}
    pids = {pid for pid in parents if marker in command_of(pid) and pid != os.getpid()}
    while children := {pid for pid, parent in parents.items() if parent in pids} - pids:
        pids |= children
    return [TrackedProcess(pid, start) for pid in sorted(pids) if (start := _start_and_parent(pid)[0])]


def find_by_environment(variable: str) -> list[TrackedProcess]:
    """Processes of this user that started with `NAME=value` in their environment, as all children of one do."""
    entry, processes = variable.encode(), list[TrackedProcess]()
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or belongs to another user
            if entry in (path / "environ").read_bytes().split(b"\0") and (process := track(int(path.name))):
                processes.append(process)
    return processes


def find_children(parent: int) -> list[TrackedProcess]:
    """Processes that this one has started or adopted, and that still run."""
    pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    return [
        TrackedProcess(pid, start) for pid in pids for start, of in [_start_and_parent(pid)] if start and of == parent
    ]


def environment_of(pid: int) -> dict[str, str]:
    """Environment variables that a process started with; empty if it is gone or belongs to another user."""
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return {}
    return {name: value for name, _, value in (entry.partition("=") for entry in entries) if name}


def track(pid: int) -> TrackedProcess | None:
    """The process that has this pid now; None if there is none."""
    start, _ = _start_and_parent(pid)
    return TrackedProcess(pid, start) if start else None


def send_signal(process: TrackedProcess, number: int) -> bool:
    """Send a signal to this process and no other that may have its pid now; False if it has ended."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        if not process.alive:
            return False
        signal.pidfd_send_signal(descriptor, number)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)


def shared_memory(pid: int) -> set[Path]:
    """Files of /dev/shm that a process has mapped."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
    except OSError:
        return set()
    paths = {line[line.index(_SHARED) :] for line in lines if _SHARED in line}
    return {Path(path) for path in paths if not path.endswith(" (deleted)")}


def end_processes(processes: list[TrackedProcess], *, grace_s: float) -> None:
    """Wait until all have ended; kill those that still run after `grace_s`."""
    deadline = time.monotonic() + grace_s
    while any(process.alive for process in processes) and time.monotonic() < deadline:
        time.sleep(_EVERY_S)
    for process in processes:
        if process.alive:
            with contextlib.suppress(ProcessLookupError):  # ended since the check
                os.kill(process.pid, signal.SIGKILL)


def signal_on_parent_death(number: signal.Signals, parent: int | None = None) -> None:
    """Send this process a signal when the process that started it ends, which may be already; on Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
        if parent is not None and os.getppid() != parent:
            os.kill(os.getpid(), number)


def adopt_orphans() -> None:
    """Become the parent of descendants whose parent ends, which would be the init process otherwise; on Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_children(spared: Sequence[TrackedProcess] = ()) -> None:
    """Kill all children of this process and, after `adopt_orphans`, their descendants; returns when none is left.

    Those that are `spared` keep running.
    """
    pids = {process.pid for process in spared}
    deadline = time.monotonic() + _CHILDREN_S
    with contextlib.suppress(ChildProcessError):  # none is left
        while time.monotonic() < deadline:
            children = {int(path.name) for path in Path("/proc").glob("[0-9]*")} - pids
            ended = [pid for pid in children if _start_and_parent(pid)[1] == os.getpid()]
            for pid in ended:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            if pids and not ended:
                return
            time.sleep(_EVERY_S)


def command_of(pid: int) -> str:
    """Command line or title of a process, with a NUL after each argument; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def _start_and_parent(pid: int) -> tuple[str, int]:
    """Start time in the system's clock ticks and the parent's pid; ("", 0) for a process that is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "", 0
    return ("", 0) if fields[0] == "Z" else (fields[19], int(fields[1]))
