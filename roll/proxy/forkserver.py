"""A fork server for Python agents: its process imports modules once, and every agent is a fork of it.

| call | waits for | woken by |
|---|---|---|
| `run` | the imports, the first time; then the agent's end, too much output, or the time limit | its process |
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
from roll.sandbox.base import ExitReason, ProgramResult, ResourceLimits, SandboxFailed
from roll.sandbox.process import Command, OutputReader, create_sealed_file, exit_reason, wait_all, wait_first

_START_S, _GRACE_S = 300.0, 2.0
_MAX_MESSAGE = 1 << 16
_MAIN = Path(__file__).with_name("forkserver_main.py")


class ForkServer:
    """Runs scripts in forks of one Python process; restarts that process if it has died."""

    def __init__(self, folder: str, modules: Sequence[str]) -> None:
        """`folder` holds the scripts, and may hold modules."""
        self._folder, self._modules = folder, tuple(modules)
        self.process: subprocess.Popen[bytes] | None = None
        """The process that forks; None before the first agent."""
        self._socket: socket.socket | None = None
        self._replies: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._num_orders = 0
        self._starting = asyncio.Lock()

    async def run(self, command: Command, limits: ResourceLimits) -> ProgramResult:
        """Run the script `command.argv[0]` to its end or its limits; its process group is dead afterwards."""
        await self._ensure_process()
        began = time.monotonic()
        flood = asyncio.Event()
        streams = [OutputReader(limits.output_bytes, flood) for _ in range(2)]
        stdin = create_sealed_file(command.stdin)
        try:
            pid = await self._fork(command, [stdin, *(stream.write for stream in streams)])
        except BaseException:
            for stream in streams:
                stream.close()
            raise
        finally:
            for descriptor in (stdin, *(stream.write for stream in streams)):
                os.close(descriptor)
        return await self._watch(pid, limits.wall_s, streams, flood, began)

    async def stop(self) -> None:
        """End the process; running agents are killed by the `run` that started them."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    async def _fork(self, command: Command, descriptors: Sequence[int]) -> int:
        order = {
            "argv": list(command.argv),
            "directory": command.directory,
            "environment": dict(command.environment),
        }
        starting = asyncio.ensure_future(self._ask(order, descriptors))
        try:
            return (await asyncio.shield(starting))["pid"]
        except asyncio.CancelledError:
            pid: int = (await starting)["pid"]  # otherwise it would keep running unsupervised
            _kill(pid)
            await self._ask({"reap": pid})
            raise

    async def _watch(
        self, pid: int, wall_s: float, streams: Sequence[OutputReader], flood: asyncio.Event, began: float
    ) -> ProgramResult:
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        descriptor = os.pidfd_open(pid)
        loop.add_reader(descriptor, ended.set)
        try:
            await wait_first(ended, flood, timeout_s=wall_s)
            exited = ended.is_set()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
            try:
                _kill(pid)
                code: int = (await self._ask({"reap": pid}))["status"]
            finally:
                await wait_all(*(stream.ended for stream in streams), timeout_s=_GRACE_S)
                stdout, stderr = (stream.close() for stream in streams)
        reason = exit_reason(exited, flood.is_set(), code)
        return ProgramResult(
            reason=reason,
            exit_code=code if reason is ExitReason.EXITED else None,
            signal=-code if code < 0 else None,
            stdout=stdout,
            stderr=stderr,
            wall_s=time.monotonic() - began,
        )

    async def _ensure_process(self) -> None:
        """Start the process if it is not running, and wait for its imports."""
        async with self._starting:
            if self._socket is not None:
                return
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                self.process = subprocess.Popen(
                    [sys.executable, str(_MAIN), str(theirs.fileno()), self._folder, *self._modules],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    start_new_session=True,
                )
            ours.setblocking(False)
            self._socket = ours
            loop = asyncio.get_running_loop()
            ready = self._replies[0] = loop.create_future()
            loop.add_reader(ours, self._receive)
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
        reply = self._replies[number] = asyncio.get_running_loop().create_future()
        data = json.dumps({"id": number, **order}).encode()
        while True:
            if self._socket is None:
                raise SandboxFailed("agent: the fork server has died; see the modules it imports")
            try:
                socket.send_fds(self._socket, [data], list(descriptors))
                break
            except BlockingIOError:
                await asyncio.sleep(0.005)
            except OSError as error:
                raise SandboxFailed(f"agent: cannot be started ({error}); check the system") from error
        return await reply

    def _receive(self) -> None:
        assert self._socket is not None
        try:
            data = self._socket.recv(_MAX_MESSAGE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._fail_pending()
            return
        fields: dict[str, Any] = json.loads(data)
        reply = self._replies.pop(fields.pop("id"))
        if not reply.done():
            reply.set_result(fields)

    def _fail_pending(self) -> None:
        """The process has died: fail all pending orders; the next agent starts another process."""
        assert self._socket is not None
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        self._socket = None
        waiting, self._replies = self._replies, {}
        for reply in waiting.values():
            if not reply.done():
                reply.set_exception(SandboxFailed("agent: the fork server has died; see its standard error"))


def _kill(pid: int) -> None:
    """Kill the whole process group. Safe until the process is reaped: until then its pid is not reused."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:  # it has not created its own group yet
        os.kill(pid, signal.SIGKILL)
