"""The records of the sandbox: programs, resource limits and results."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from roll.errors import RewardFailed


class SandboxFailed(RewardFailed):
    """The sandbox could not be set up or torn down; the program in it is not at fault."""


class ExitReason(StrEnum):
    """Why a program ended."""

    EXITED = "exited"
    TIMED_OUT = "timed_out"
    OUTPUT_FLOOD = "output_flood"
    """Standard output or standard error exceeded its limit."""
    KILLED = "killed"
    """By a signal: from itself, the kernel, or a resource limit, such as that on memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program. It starts in a fresh directory that contains only `files`."""

    argv: tuple[str, ...]
    """The first is looked up in the system's PATH."""
    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    """Contents by file name, without directories."""
    stdin: bytes = b""
    ready: bytes = b""
    """A line of standard output that the program prints once it has started. `wall_s` counts from that line, and
    `start_s` limits the time before it. Without it `wall_s` counts from the start of the process."""
    first: bool = False
    """Run as process 1 of the namespace, if there is one: no process in the sandbox can kill it, and none outlives it.
    Signals then have no default effect on it."""

    def __post_init__(self) -> None:
        for name in self.files:
            if not name or "/" in name or name in (".", ".."):
                raise ValueError(f"sandbox: a file's name has no directories (got {name!r}); use a plain name")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceLimits:
    """Limits of a program."""

    wall_s: float = 5.0
    start_s: float = 60.0
    """Until the line `Program.ready`. Only a busy or broken machine reaches it."""
    memory_bytes: int = 512 * 2**20
    """Address space per process."""
    total_bytes: int = 528 * 2**20
    """Memory of all processes together, with files in memory and the kernel's buffers. Watched from outside."""
    processes: int = 32
    """Including threads."""
    output_bytes: int = 2**20
    """For each of standard output and standard error."""
    file_bytes: int = 16 * 2**20
    """Per file; with a private file system, also the total of all files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramResult:
    """How a program ended, and its output."""

    reason: ExitReason
    exit_code: int | None
    """None if it was killed or ended by a signal."""
    signal: int | None
    stdout: bytes
    stderr: bytes
    """Both streams are truncated at the limit."""
    wall_s: float
    cpu_s: float
    """CPU time, user and system, of all processes of the program. Not counted: children whose parent ignores their end,
    and processes that still run when the first one exits."""

    @property
    def succeeded(self) -> bool:
        """Exited with code 0."""
        return self.reason is ExitReason.EXITED and self.exit_code == 0


Run = Callable[[Program, ResourceLimits], Awaitable[ProgramResult]]
"""Runs a program to its end at one level of isolation."""
