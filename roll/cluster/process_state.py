"""Descriptions of processes for the user: how one ended, and why one that still runs makes no progress."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import NamedTuple

OUT_OF_MEMORY = (
    "the kernel's out-of-memory killer is the usual cause: see dmesg, and lower the number of workers or their memory"
)
_STATES = {
    "T": "the process is stopped (state T); `kill -CONT {pid}` continues it",
    "t": "a debugger has stopped the process (state t)",
    "D": "the process waits for a disk or a device (state D)",
    "Z": "the process has ended (state Z)",
    "X": "the process has ended (state X)",
}
"""States of /proc in which a process does not compute."""
_LOGGED = re.compile(r'^(?:\{.*"message": ")?([\w+-]+ \d+): process (\d+) on ([^\s"]+)(?:"\})?$', re.MULTILINE)


class LoggedProcess(NamedTuple):
    """A worker's process as its log names it."""

    worker: str
    pid: int
    machine: str


def logged_process(log: Path) -> LoggedProcess | None:
    """The last process that a worker's log names, before or after it has ended."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    named = _LOGGED.findall(text)
    return LoggedProcess(named[-1][0], int(named[-1][1]), named[-1][2]) if named else None


def describe_exit(pid: int, code: int | None) -> tuple[str, str]:
    """How a process ended, and a hint, which may be empty. `code` is that of `subprocess`; None: it still runs."""
    if code is None:
        return f"its process (pid {pid}) closed its connection", ""
    if code >= 0:
        return f"its process (pid {pid}) exited with code {code}", ""
    number = -code
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    return f"its process (pid {pid}) was killed by {name}", OUT_OF_MEMORY if number == signal.SIGKILL else ""


def is_stopped(pid: int) -> bool:
    """Whether a signal or a debugger has stopped a process of this machine."""
    return _state(pid) in ("T", "t")


def describe_state(pid: int) -> str:
    """Why a process of this machine makes no progress; empty if it seems to run or /proc is not there."""
    return _STATES.get(_state(pid), "").format(pid=pid)


def _state(pid: int) -> str:
    """Its letter in /proc; empty if it is unknown."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def signal_named(pid: int, title: str, number: int) -> None:
    """Signal a process of this machine, unless its title does not begin so: then another one has its pid."""
    try:
        if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(title.encode()):
            os.kill(pid, number)
    except OSError:
        return  # it has ended
