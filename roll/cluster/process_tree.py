"""Finds processes by their command line, so that they can be ended although the process that started them is gone."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

_EVERY_S = 0.05


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
    pids = {pid for pid in parents if marker in _command(pid) and pid != os.getpid()}
    while children := {pid for pid, parent in parents.items() if parent in pids} - pids:
        pids |= children
    return [TrackedProcess(pid, start) for pid in sorted(pids) if (start := _start_and_parent(pid)[0])]


def end_processes(processes: list[TrackedProcess], *, grace_s: float) -> None:
    """Wait until all have ended; kill those that still run after `grace_s`."""
    deadline = time.monotonic() + grace_s
    while any(process.alive for process in processes) and time.monotonic() < deadline:
        time.sleep(_EVERY_S)
    for process in processes:
        if process.alive:
            with contextlib.suppress(ProcessLookupError):  # ended since the check
                os.kill(process.pid, signal.SIGKILL)


def _command(pid: int) -> str:
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
