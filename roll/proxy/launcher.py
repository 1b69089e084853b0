"""Agents as forks of one small process, which kills them with their child processes if the run is killed.

| call | waits for | woken by |
|---|---|---|
| `run` | the process, the first time; then the agent's end, too much output, or the time limit | its process |
| `stop` | the end of the process | its death, after a kill |
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ParamSpec, TypeVar

from roll.errors import ConfigError
from roll.sandbox.base import ProgramResult, ResourceLimits, SandboxFailed
from roll.sandbox.forkserver import ForkServer, ForkServerDied
from roll.sandbox.forkserver_main import ProcessExit, kill_group
from roll.sandbox.process import Command, StartedProcess, create_sealed_file, supervise

P = ParamSpec("P")
T = TypeVar("T")

_START_S = 300.0
_ROOT = Path(__file__).parents[2]


class ProgramLauncher:
    """Runs commands in forks of one process; restarts that process if it has died."""

    def __init__(self) -> None:
        self._program = server_program("roll.proxy.launcher_main")
        self._fault = "agent: cannot start a process (see above); check the system"
        """Error if the process does not start."""
        self.server: ForkServer | None = None
        """None before the first agent."""
        self._starting = asyncio.Lock()

    async def run(self, command: Command, limits: ResourceLimits) -> ProgramResult:
        """Run a command to its end or its limits; its process group is dead afterwards."""
        async with self._starting:
            if self.server is None or self.server.process.poll() is not None:
                await self.stop()
                self.server = ForkServer(self._program)
                if await asyncio.to_thread(self.server.await_ready, _START_S):
                    await self.stop()
                    raise ConfigError(self._fault)
        return await supervise(command, limits, self._fork)

    async def stop(self) -> None:
        """End the process and the agents that still run."""
        if self.server is not None:
            self.server.stop()
            self.server = None

    async def _fork(self, command: Command, streams: Sequence[int]) -> StartedProcess:
        server = self.server
        assert server is not None
        order = [list(command.argv), command.directory, dict(command.environment)]
        order_file = create_sealed_file(json.dumps(order).encode())  # an environment may exceed a message
        forking = asyncio.ensure_future(_in_thread(server.fork, None, (order_file, *streams)))
        forking.add_done_callback(lambda _: os.close(order_file))

        async def reap() -> ProcessExit:
            return await _in_thread(server.reap, await forking)

        try:
            return StartedProcess(await asyncio.shield(forking), reap)
        except asyncio.CancelledError:
            kill_group(await forking)  # otherwise it would keep running unsupervised
            await reap()
            raise


def server_program(module: str, *arguments: str) -> tuple[str, ...]:
    """Command of a fork server whose `main` is in a module."""
    code = f"import sys; sys.path[0] = {str(_ROOT)!r}; from {module} import main; main()"
    return (sys.executable, "-c", code, *arguments)


async def _in_thread(method: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    try:
        return await asyncio.to_thread(method, *args, **kwargs)
    except ForkServerDied as error:
        raise SandboxFailed(f"agent: its fork server cannot be used ({error}); see its standard error") from None
