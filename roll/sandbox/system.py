"""System tools that every level uses: program lookup, resource limits, and an unprivileged user."""

from __future__ import annotations

import functools
import os
import shutil

from roll.sandbox.base import ResourceLimits, SandboxFailed

NOBODY = 65534
PATH = "/usr/local/bin:/usr/bin:/bin"
"""Search path inside and outside the sandbox; the unprivileged user cannot read home directories."""
_OPEN_FILES = 128
_PENDING_SIGNALS = 1024
"""Also limits timers."""
_FIRST_KILLED = ("/bin/sh", "-c", '{ echo 1000 >/proc/self/oom_score_adj; } 2>/dev/null; exec "$@"', "sh")


@functools.cache
def find_program(name: str) -> str:
    """The full path of a system program."""
    path = shutil.which(name, path=f"{PATH}:/usr/sbin:/sbin")
    if path is None:
        raise SandboxFailed(f"sandbox: no program {name!r} on this system; install it")
    return path


def run_as_nobody() -> list[str]:
    """Command prefix that runs the rest as the unprivileged user; empty unless this process is root.

    A separate program does it, because changing the user between fork and exec copies a large parent's page tables.
    """
    if os.geteuid() != 0:
        return []
    return [find_program("setpriv"), f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--"]


def run_untrusted() -> list[str]:
    """Command prefix for untrusted programs: the unprivileged user, and the first to be killed without free memory.

    If root sets that score, the program cannot lower it again.
    """
    return [*_FIRST_KILLED, *run_as_nobody()]


def limit_command(limits: ResourceLimits) -> list[str]:
    """Command prefix that runs the rest within `limits`."""
    return [
        find_program("prlimit"),
        f"--as={limits.memory_bytes}",
        f"--nproc={limits.processes}",
        f"--fsize={limits.file_bytes}",
        f"--nofile={_OPEN_FILES}",
        f"--cpu={int(limits.wall_s) + 2}",
        "--core=0",
        "--memlock=0",
        "--msgqueue=0",
        f"--sigpending={_PENDING_SIGNALS}",
        "--",
    ]
