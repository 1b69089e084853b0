"""The level without isolation: limits per process, a minimal environment, a directory. `LACKS` lists the gaps."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from pathlib import Path

from roll.sandbox.base import Program, ProgramResult, ResourceLimits
from roll.sandbox.process import Command, supervise
from roll.sandbox.system import NOBODY, PATH, limit_command, run_untrusted

LACKS = (
    "the network can be reached",
    "files of the machine can be read where their permissions allow it",
    "processes of the machine can be seen, and those of the same user signalled",
    "a process that leaves its session survives the program's end",
    "processes are counted together with all others of the user, so concurrent programs share the limit",
    "files may be left in world-writable directories, without a limit on their total size",
    "memory can be allocated in ways that no limit counts: shared without a file, or by the kernel",
)
"""Attacks that this level does not stop. The tests check this list."""


async def run(program: Program, limits: ResourceLimits) -> ProgramResult:
    """Run `program` within `limits`, without the isolation that `LACKS` describes."""
    with tempfile.TemporaryDirectory(prefix="roll-plain-", ignore_cleanup_errors=True) as directory:
        for name, content in program.files.items():
            Path(directory, name).write_bytes(content)
        if os.geteuid() == 0:
            _chown_to_nobody(directory)
        raised = dataclasses.replace(limits, processes=limits.processes + _count_threads())
        command = Command(
            argv=[*run_untrusted(), *limit_command(raised), *program.argv],
            stdin=program.stdin,
            ready=program.ready,
            environment={"PATH": PATH, "HOME": directory, "LANG": "C.UTF-8"},
            directory=directory,
            watched=True,
        )
        return await supervise(command, limits)


def _count_threads() -> int:
    """Existing threads of the user that the program will run as; the system's limit includes them."""
    user = NOBODY if os.geteuid() == 0 else os.getuid()
    count = 0
    for process in (entry for entry in Path("/proc").iterdir() if entry.name.isdigit()):
        try:
            count += len(os.listdir(process / "task")) if process.stat().st_uid == user else 0
        except OSError:
            continue  # it has just ended
    return count


def _chown_to_nobody(directory: str) -> None:
    for path in (directory, *(str(path) for path in Path(directory).iterdir())):
        os.chown(path, NOBODY, NOBODY)
