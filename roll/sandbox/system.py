"""What every level asks of the system: its programs, its limits, and a user who owns nothing."""

from __future__ import annotations

import functools
import os
import shutil

from roll.sandbox.base import Limits, SandboxFailed

NOBODY = 65534
PATH = "/usr/local/bin:/usr/bin:/bin"
"""Where programs are looked for, inside and outside; a user's own directories are closed to nobody."""
_OPEN_FILES = 128


@functools.cache
def found(name: str) -> str:
    """The full path of a program of the system."""
    path = shutil.which(name, path=f"{PATH}:/usr/sbin:/sbin")
    if path is None:
        raise SandboxFailed(f"sandbox: no program {name!r} on this system; install it")
    return path


def as_nobody() -> list[str]:
    """The words that run what follows them as nobody; none where we are an ordinary user already.

    A program of its own does it, because a large parent that changes the user between fork and exec copies its tables.
    """
    if os.geteuid() != 0:
        return []
    return [found("setpriv"), f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--"]


def bounded(limits: Limits) -> list[str]:
    """The words that run what follows them within `limits`."""
    return [
        found("prlimit"),
        f"--as={limits.memory_bytes}",
        f"--nproc={limits.processes}",
        f"--fsize={limits.file_bytes}",
        f"--nofile={_OPEN_FILES}",
        f"--cpu={int(limits.wall_s) + 2}",
        "--core=0",
        "--memlock=0",
        "--msgqueue=0",
        "--",
    ]
