"""The level without isolation: limits by process, an empty environment, a directory. `LACKS` says what is missing."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from pathlib import Path

from roll.sandbox.base import Limits, Outcome, Program
from roll.sandbox.process import Command, supervise
from roll.sandbox.system import NOBODY, PATH, as_nobody, bounded

LACKS = (
    "the network can be reached",
    "files of the machine can be read where their permissions allow it",
    "processes of the machine can be seen, and those of the same user signalled",
    "a process that leaves its session lives on after the program's end",
    "processes are counted together with all others of the user, so that neighbours take each other's",
    "files may be left in places that everyone may write to, without a bound on all of them together",
    "memory can be had in ways that no limit counts",
)
"""What this level does not stop, in words. The tests hold it to this list."""


async def run(program: Program, limits: Limits) -> Outcome:
    """What becomes of `program` within `limits`, with everything that `LACKS` says still open to it."""
    with tempfile.TemporaryDirectory(prefix="roll-plain-", ignore_cleanup_errors=True) as directory:
        for name, content in program.files.items():
            Path(directory, name).write_bytes(content)
        if os.geteuid() == 0:
            _give_away(directory)
        room = dataclasses.replace(limits, processes=limits.processes + _num_taken())
        command = Command(
            argv=[*as_nobody(), *bounded(room), *program.argv],
            stdin=program.stdin,
            environment={"PATH": PATH, "HOME": directory, "LANG": "C.UTF-8"},
            directory=directory,
        )
        return await supervise(command, limits)


def _num_taken() -> int:
    """Threads that the user whom the program will run as has already; the system's limit counts them too."""
    user = NOBODY if os.geteuid() == 0 else os.getuid()
    taken = 0
    for process in (entry for entry in Path("/proc").iterdir() if entry.name.isdigit()):
        try:
            taken += len(os.listdir(process / "task")) if process.stat().st_uid == user else 0
        except OSError:
            continue  # it has ended meanwhile
    return taken


def _give_away(directory: str) -> None:
    for path in (directory, *(str(path) for path in Path(directory).iterdir())):
        os.chown(path, NOBODY, NOBODY)
