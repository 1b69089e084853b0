"""One child process under watch: its output is capped by the reader, its time by the clock of the parent.

| call | waits for | woken by |
|---|---|---|
| `supervise` | the child's end, a flood of output, or `wall_s` | its process descriptor, its pipes, the loop's clock |
| `supervise`, then | the pipes' end: nobody writes any more; at most `_GRACE_S` | its pipes, the loop's clock |
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from roll.sandbox.base import Ended, Limits, Outcome, SandboxFailed

_GRACE_S = 2.0
"""How long a killed process may take to be gone."""
_CHUNK = 65536
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A child process as the system sees it."""

    argv: Sequence[str]
    stdin: bytes
    descriptors: Sequence[int] = ()
    """Inherited by the child; closed here once it runs."""
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    directory: str = "/"


class _Drain:
    """The reading end of one pipe; keeps the first `limit` bytes and says when there were more."""

    def __init__(self, limit: int, flood: asyncio.Event) -> None:
        self._limit, self._flood = limit, flood
        self._kept = bytearray()
        self._read, self.write = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._read, False)
        self.ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._read, self._take)

    def _take(self) -> None:
        chunk = os.read(self._read, _CHUNK)
        if not chunk:
            self.ended.set()
            asyncio.get_running_loop().remove_reader(self._read)
        self._kept += chunk[: self._limit - len(self._kept) + 1]
        if len(self._kept) > self._limit:
            self._flood.set()

    def close(self) -> bytes:
        """What was kept; whoever still writes gets a broken pipe."""
        asyncio.get_running_loop().remove_reader(self._read)
        os.close(self._read)
        return bytes(self._kept[: self._limit])


class _Child:
    """A started process, its group and its end."""

    def __init__(self, command: Command, streams: Sequence[_Drain]) -> None:
        stdin = sealed(command.stdin)
        try:
            self._process = subprocess.Popen(
                command.argv,
                stdin=stdin,
                stdout=streams[0].write,
                stderr=streams[1].write,
                pass_fds=command.descriptors,
                env=command.environment,
                cwd=command.directory,
                start_new_session=True,
            )
        except OSError as error:
            for stream in streams:
                stream.close()
            raise SandboxFailed(f"sandbox: cannot start {command.argv[0]!r} ({error}); check the system") from error
        finally:
            for descriptor in (stdin, *(stream.write for stream in streams), *command.descriptors):
                os.close(descriptor)
        self.ended = asyncio.Event()
        self._descriptor = os.pidfd_open(self._process.pid)
        asyncio.get_running_loop().add_reader(self._descriptor, self._end)

    def _end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        self.ended.set()

    def kill(self) -> None:
        """Kill the whole group. It is safe while the child is not reaped: until then its number is nobody else's."""
        os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> int:
        """Its return code, as `subprocess` has it; it must have been killed, or have ended."""
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)
        try:
            return self._process.wait(timeout=_GRACE_S)
        except subprocess.TimeoutExpired as error:
            raise SandboxFailed(f"sandbox: process {self._process.pid} cannot be killed; see what holds it") from error


async def supervise(command: Command, limits: Limits) -> Outcome:
    """Run one command to its end or to its limits; its process group is dead afterwards, cancelled or not."""
    flood = asyncio.Event()
    streams = [_Drain(limits.output_bytes, flood) for _ in range(2)]
    started = time.monotonic()
    child = _Child(command, streams)
    try:
        await _first(child.ended, flood, timeout_s=limits.wall_s)
        ended_by_itself = child.ended.is_set()
    finally:
        child.kill()
        await _all(child.ended, timeout_s=_GRACE_S)
        code = child.close()
        await _all(*(stream.ended for stream in streams), timeout_s=_GRACE_S)
        stdout, stderr = (stream.close() for stream in streams)
    exited = ended_by_itself and code >= 0
    return Outcome(
        ended=_why(ended_by_itself, flood.is_set(), code),
        exit_code=code if exited else None,
        signal=-code if code < 0 else None,
        stdout=stdout,
        stderr=stderr,
        wall_s=time.monotonic() - started,
    )


def sealed(content: bytes) -> int:
    """A descriptor of a file in memory that can be read and never written to, standing at its beginning."""
    descriptor = os.memfd_create("sandbox", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    return descriptor


def _why(ended_by_itself: bool, flooded: bool, code: int) -> Ended:
    if flooded:
        return Ended.OUTPUT_FLOOD
    if not ended_by_itself:
        return Ended.TIMED_OUT
    return Ended.EXITED if code >= 0 else Ended.KILLED


async def _first(*events: asyncio.Event, timeout_s: float) -> None:
    await _wait(events, timeout_s, asyncio.FIRST_COMPLETED)


async def _all(*events: asyncio.Event, timeout_s: float) -> None:
    await _wait(events, timeout_s, asyncio.ALL_COMPLETED)


async def _wait(events: Sequence[asyncio.Event], timeout_s: float, until: str) -> None:
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=timeout_s, return_when=until)
    finally:
        for wait in waits:
            wait.cancel()
