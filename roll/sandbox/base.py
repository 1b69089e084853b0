"""The records of the room: what is run, what it may use, and what became of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from roll.errors import RewardFailed


class SandboxFailed(RewardFailed):
    """The sandbox could not be set up or torn down. Never the fault of the program in it."""


class Ended(StrEnum):
    """Why a program came to its end."""

    EXITED = "exited"
    TIMED_OUT = "timed_out"
    OUTPUT_FLOOD = "output_flood"
    """Its standard output or standard error was longer than allowed."""
    KILLED = "killed"
    """By a signal: its own, the kernel's, or that of one of its limits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Something to run. It starts in a directory of its own, with nothing but `files` in it."""

    argv: tuple[str, ...]
    """The first is looked up in the system's directories of programs."""
    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    """By name, without directories."""
    stdin: bytes = b""
    first: bool = False
    """It is process 1 of its namespace, where there is one: no process in the sandbox can signal it against its will,
    and none outlives it. It must itself expect that signals have no default effect on it."""

    def __post_init__(self) -> None:
        for name in self.files:
            if not name or "/" in name or name in (".", ".."):
                raise ValueError(f"sandbox: a file's name has no directories (got {name!r}); use a plain name")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a program may use. Memory is counted by process, so the most of it is `processes * memory_bytes`."""

    wall_s: float = 5.0
    memory_bytes: int = 512 * 2**20
    """Address space of each process."""
    processes: int = 32
    """Threads count."""
    output_bytes: int = 2**20
    """Of standard output and of standard error, each."""
    file_bytes: int = 16 * 2**20
    """Of each file, and where the sandbox has a file system of its own, of all of them together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a program."""

    ended: Ended
    exit_code: int | None
    """None when it was ended from outside, or by a signal."""
    signal: int | None
    stdout: bytes
    stderr: bytes
    """Both cut at the limit."""
    wall_s: float

    @property
    def succeeded(self) -> bool:
        """Ended by itself with exit code 0; says nothing about what it did."""
        return self.ended is Ended.EXITED and self.exit_code == 0


Run = Callable[[Program, Limits], Awaitable[Outcome]]
"""Runs a program to its end, at one level of isolation."""
