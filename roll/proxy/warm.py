"""Agents in Python that begin with their imports done: forked from a process that has made them once.

| call | waits for | woken by |
|---|---|---|
| `run` | the imports, the first time; then the agent's end, a flood of output, or its limit of time | its process |
| `stop` | nothing | |
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from roll.errors import ConfigError
from roll.sandbox.base import Ended, Limits, Outcome, SandboxFailed
from roll.sandbox.process import Command, sealed

_START_S, _GRACE_S = 300.0, 5.0
_LARGEST = 1 << 16
_ZYGOTE = Path(__file__).with_name("zygote.py")


class WarmPython:
    """Runs scripts in forks of one Python; another is started where it has died."""

    def __init__(self, folder: str, modules: Sequence[str]) -> None:
        """Modules may lie in `folder`, where the scripts are."""
        self._folder, self._modules = folder, tuple(modules)
        self.process: subprocess.Popen[bytes] | None = None
        """The one that is forked; None before the first agent."""
        self._orders: socket.socket | None = None
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._num_orders = 0
        self._starting = asyncio.Lock()

    async def run(self, command: Command, limits: Limits) -> Outcome:
        """The script `command.argv[0]` to its end or its limits; its process group is dead afterwards."""
        await self._up()
        began = time.monotonic()
        flood = asyncio.Event()
        streams = [_Stream(limits.output_bytes, flood) for _ in range(2)]
        stdin = sealed(command.stdin)
        try:
            pid = await self._started(command, [stdin, *(stream.write for stream in streams)])
        except BaseException:
            for stream in streams:
                stream.close()
            raise
        finally:
            for descriptor in (stdin, *(stream.write for stream in streams)):
                os.close(descriptor)
        return await self._watched(pid, limits.wall_s, streams, flood, began)

    async def stop(self) -> None:
        """End it; agents that still run are their own supervisors' to kill."""
        if self._orders is not None:
            asyncio.get_running_loop().remove_reader(self._orders)
            self._orders.close()
            self._orders = None
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    async def _started(self, command: Command, descriptors: Sequence[int]) -> int:
        order = {
            "argv": list(command.argv),
            "directory": command.directory,
            "environment": dict(command.environment),
        }
        starting = asyncio.ensure_future(self._ask(order, descriptors))
        try:
            return (await asyncio.shield(starting))["pid"]
        except asyncio.CancelledError:
            pid: int = (await starting)["pid"]  # else it would run on, with nobody to end it
            _kill(pid)
            await self._ask({"reap": pid})
            raise

    async def _watched(
        self, pid: int, wall_s: float, streams: Sequence[_Stream], flood: asyncio.Event, began: float
    ) -> Outcome:
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        descriptor = os.pidfd_open(pid)
        loop.add_reader(descriptor, ended.set)
        try:
            await _first(ended, flood, timeout_s=wall_s)
            by_itself = ended.is_set()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
            try:
                _kill(pid)
                code: int = (await self._ask({"reap": pid}))["status"]
            finally:
                written = [stream.close() for stream in streams]
        why = Ended.EXITED if code >= 0 else Ended.KILLED
        if flood.is_set():
            why = Ended.OUTPUT_FLOOD
        elif not by_itself:
            why = Ended.TIMED_OUT
        return Outcome(
            ended=why,
            exit_code=code if why is Ended.EXITED else None,
            signal=-code if code < 0 else None,
            stdout=written[0],
            stderr=written[1],
            wall_s=time.monotonic() - began,
        )

    async def _up(self) -> None:
        """Have a Python with its imports done."""
        async with self._starting:
            if self._orders is not None:
                return
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                self.process = subprocess.Popen(
                    [sys.executable, str(_ZYGOTE), str(theirs.fileno()), self._folder, *self._modules],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    start_new_session=True,
                )
            ours.setblocking(False)
            self._orders = ours
            loop = asyncio.get_running_loop()
            ready = self._answers[0] = loop.create_future()
            loop.add_reader(ours, self._hear)
            try:
                async with asyncio.timeout(_START_S):
                    await ready
            except (TimeoutError, SandboxFailed):
                await self.stop()
                names = ", ".join(self._modules)
                raise ConfigError(f"agent.preload: cannot import {names} (see above); leave it out") from None

    async def _ask(self, order: dict[str, Any], descriptors: Sequence[int] = ()) -> dict[str, Any]:
        self._num_orders += 1
        number = self._num_orders
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        data = json.dumps({"id": number, **order}).encode()
        while True:
            if self._orders is None:
                raise SandboxFailed("agent: the Python that starts agents has died; see what it imports")
            try:
                socket.send_fds(self._orders, [data], list(descriptors))
                break
            except BlockingIOError:
                await asyncio.sleep(0.005)
            except OSError as error:
                raise SandboxFailed(f"agent: cannot be started ({error}); check the system") from error
        return await answer

    def _hear(self) -> None:
        assert self._orders is not None
        try:
            data = self._orders.recv(_LARGEST)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lost()
            return
        found: dict[str, Any] = json.loads(data)
        answer = self._answers.pop(found.pop("id"))
        if not answer.done():
            answer.set_result(found)

    def _lost(self) -> None:
        """It has died: whoever waits hears of it, and the next agent gets another."""
        assert self._orders is not None
        asyncio.get_running_loop().remove_reader(self._orders)
        self._orders.close()
        self._orders = None
        waiting, self._answers = self._answers, {}
        for answer in waiting.values():
            if not answer.done():
                answer.set_exception(SandboxFailed("agent: the Python that starts agents has died; see its last words"))


class _Stream:
    """The reading end of one pipe; keeps the first `limit` bytes and says when there were more."""

    def __init__(self, limit: int, flood: asyncio.Event) -> None:
        self._limit, self._flood, self._kept = limit, flood, bytearray()
        self._read, self.write = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._read, False)
        asyncio.get_running_loop().add_reader(self._read, self._take)

    def _take(self) -> bool:
        """Whether there may be more."""
        try:
            chunk = os.read(self._read, 1 << 16)
        except BlockingIOError:
            return False
        if not chunk:
            asyncio.get_running_loop().remove_reader(self._read)
        self._kept += chunk[: self._limit - len(self._kept) + 1]
        if len(self._kept) > self._limit:
            self._flood.set()
            return False
        return bool(chunk)

    def close(self) -> bytes:
        """What was kept, all that is in the pipe included."""
        while self._take():
            pass
        asyncio.get_running_loop().remove_reader(self._read)
        os.close(self._read)
        return bytes(self._kept[: self._limit])


def _kill(pid: int) -> None:
    """The whole group; it is safe while the process is not reaped: until then its number is nobody else's."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:  # it was still on its way to a group of its own
        os.kill(pid, signal.SIGKILL)


async def _first(*events: asyncio.Event, timeout_s: float) -> None:
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
