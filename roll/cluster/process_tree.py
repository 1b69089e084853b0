"""Processes by what they say of themselves, so that what was started can be ended although who started it is gone."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

_EVERY_S = 0.05


@dataclass(frozen=True, slots=True)
class Member:
    """One process; its number may be given to another one later, its number and its start may not."""

    pid: int
    began: str

    @property
    def alive(self) -> bool:
        return _began_and_parent(self.pid)[0] == self.began


def family_of(mark: str) -> list[Member]:
    """All whose command line has `mark` in it, and all that descend from them; nobody where there is no /proc."""
    parents = {int(path.name): _began_and_parent(int(path.name))[1] for path in Path("/proc").glob("[0-9]*")}
    found = {pid for pid in parents if mark in _command(pid) and pid != os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return [Member(pid, began) for pid in sorted(found) if (began := _began_and_parent(pid)[0])]


def end(family: list[Member], *, grace_s: float) -> None:
    """Return when all are gone: by themselves, or killed after so many seconds."""
    deadline = time.monotonic() + grace_s
    while any(member.alive for member in family) and time.monotonic() < deadline:
        time.sleep(_EVERY_S)
    for member in family:
        if member.alive:
            with contextlib.suppress(ProcessLookupError):  # gone in this very moment
                os.kill(member.pid, signal.SIGKILL)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def _began_and_parent(pid: int) -> tuple[str, int]:
    """When it began, in the system's own count, and who its parent is; empty for one that is gone or waits to be."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "", 0
    return ("", 0) if fields[0] == "Z" else (fields[19], int(fields[1]))
