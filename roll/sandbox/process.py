"""One supervised child process: the reader caps its output, the parent's clock its time.

| call | waits for | woken by |
|---|---|---|
| `supervise` | the line that says the child has started, at most `start_s` | its pipes, the clock |
| `supervise`, then | the child's end, a flood of output, or `wall_s` | its end, its pipes, the clock |
| `supervise`, then | the end of both pipes, at most `_GRACE_S` | its pipes, the loop's clock |
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from roll.sandbox.base import ExitReason, ProgramResult, ResourceLimits, SandboxFailed
from roll.sandbox.forkserver_main import ProcessExit, kill_group, reap_process
from roll.sandbox.memory_watch import memory_watch
from roll.sandbox.process_tree import cpu_seconds, list_tree

_GRACE_S = 2.0
"""Longest time for a killed process to end."""
_POLL_S = 0.01
_CHUNK = 65536
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """The command line, input, environment and directory of a child process."""

    argv: Sequence[str]
    stdin: bytes
    ready: bytes = b""
    """As in `Program`."""
    descriptors: Sequence[int] = ()
    """Inherited by the child; closed here after its start."""
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    directory: str = "/"
    watched: bool = False
    """Whether `total_bytes` is enforced."""
    memory_directory: str = ""
    """Of the files in memory, in a program with namespaces."""


class OutputReader:
    """Reads one pipe; keeps the first `limit` bytes and sets `flood` if there are more, `ready` after that line."""

    def __init__(self, limit: int, flood: asyncio.Event, line: bytes = b"") -> None:
        self._limit, self._flood, self._line = limit, flood, line
        self.ready = asyncio.Event()
        self._data = bytearray()
        self._read, self.write = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._read, False)
        self.ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._read, self._receive)

    def _receive(self) -> None:
        chunk = os.read(self._read, _CHUNK)
        if not chunk:
            self.ended.set()
            asyncio.get_running_loop().remove_reader(self._read)
        self._data += chunk[: self._limit - len(self._data) + 1]
        if self._line and not self.ready.is_set() and self._line in bytes(self._data).split(b"\n")[:-1]:
            self.ready.set()
        if len(self._data) > self._limit:
            self._flood.set()

    def close(self) -> bytes:
        """The data; a process that still writes gets a broken pipe."""
        asyncio.get_running_loop().remove_reader(self._read)
        os.close(self._read)
        return bytes(self._data[: self._limit])


@dataclass(frozen=True, slots=True)
class StartedProcess:
    """A process that leads its own process group."""

    pid: int
    reap: Callable[[], Awaitable[ProcessExit]]
    """How it ended, once it has; afterwards its pid may be reused."""


Start = Callable[[Command, Sequence[int]], Awaitable[StartedProcess]]
"""Starts a command with three descriptors as its standard streams."""


async def start_process(command: Command, streams: Sequence[int]) -> StartedProcess:
    """A `Start`: a new process."""
    stdin, stdout, stderr = streams
    try:
        process = subprocess.Popen(
            command.argv,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=command.descriptors,
            env=command.environment,
            cwd=command.directory,
            start_new_session=True,
        )
    except OSError as error:
        raise SandboxFailed(f"sandbox: cannot start {command.argv[0]!r} ({error}); check the system") from error

    async def reap() -> ProcessExit:
        deadline = time.monotonic() + _GRACE_S
        while (ended := reap_process(process.pid, os.WNOHANG)) is None and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        if ended is None:
            raise SandboxFailed(f"sandbox: process {process.pid} cannot be killed; see what holds it")
        process.returncode = ended.code  # otherwise `Popen` would wait for it too
        return ended

    return StartedProcess(process.pid, reap)


async def supervise(command: Command, limits: ResourceLimits, start: Start = start_process) -> ProgramResult:
    """Run one command to its end or its limits; afterwards its process group is dead, even after cancellation."""
    flood, began = asyncio.Event(), time.monotonic()
    readers = [OutputReader(limits.output_bytes, flood, line) for line in (command.ready, b"")]
    streams = (create_sealed_file(command.stdin), *(reader.write for reader in readers))
    try:
        process = await start(command, streams)
    except BaseException:
        for reader in readers:
            reader.close()
        raise
    finally:
        for descriptor in (*streams, *command.descriptors):
            os.close(descriptor)
    ended = _ProcessEnd(process.pid)
    cpu_s = 0.0
    try:
        if command.watched:
            memory_watch(os.getpid()).watch(process.pid, limits, home=command.memory_directory)
        if command.ready:
            await wait_first(ended.event, flood, readers[0].ready, timeout_s=limits.start_s)
        if readers[0].ready.is_set() or not command.ready:
            await wait_first(ended.event, flood, timeout_s=limits.wall_s)
        exited = ended.event.is_set()
        if not exited:  # the CPU time of killed processes is not passed on to those that reap them
            cpu_s = cpu_seconds(list_tree(process.pid))
    finally:
        kill_group(process.pid)
        await wait_all(ended.event, timeout_s=_GRACE_S)
        ended.close()
        try:
            end = await process.reap()
        finally:
            await wait_all(*(reader.ended for reader in readers), timeout_s=_GRACE_S)
            stdout, stderr = (reader.close() for reader in readers)
    return ProgramResult(
        reason=exit_reason(exited, flood.is_set(), end.code),
        exit_code=end.code if exited and end.code >= 0 else None,
        signal=-end.code if end.code < 0 else None,
        stdout=stdout,
        stderr=stderr,
        wall_s=time.monotonic() - began,
        cpu_s=max(cpu_s, end.cpu_s),
    )


class _ProcessEnd:
    """An event that is set when a process ends."""

    def __init__(self, pid: int) -> None:
        self.event = asyncio.Event()
        self._descriptor = os.pidfd_open(pid)
        asyncio.get_running_loop().add_reader(self._descriptor, self._set)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)

    def _set(self) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        self.event.set()


def create_sealed_file(content: bytes) -> int:
    """A descriptor of a read-only file in memory, positioned at its start."""
    descriptor = os.memfd_create("sandbox", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    return descriptor


def exit_reason(exited: bool, flooded: bool, code: int) -> ExitReason:
    """Why a process ended; `exited` is whether it ended before it was killed."""
    if flooded:
        return ExitReason.OUTPUT_FLOOD
    if not exited:
        return ExitReason.TIMED_OUT
    return ExitReason.EXITED if code >= 0 else ExitReason.KILLED


async def wait_first(*events: asyncio.Event, timeout_s: float) -> None:
    """Wait for one of the events, or for the timeout."""
    await _wait(events, timeout_s, asyncio.FIRST_COMPLETED)


async def wait_all(*events: asyncio.Event, timeout_s: float) -> None:
    """Wait for all events, or for the timeout."""
    await _wait(events, timeout_s, asyncio.ALL_COMPLETED)


async def _wait(events: Sequence[asyncio.Event], timeout_s: float, until: str) -> None:
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=timeout_s, return_when=until)
    finally:
        for wait in waits:
            wait.cancel()
