"""Python agents as forks of a process that has imported their modules.

| call | waits for | woken by |
|---|---|---|
| `run` | the imports, the first time; then the agent's end, too much output, or the time limit | its process |
| `stop` | the end of the process | its death, after a kill |
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ParamSpec

from roll.errors import ConfigError
from roll.sandbox.base import ProgramResult, ResourceLimits, SandboxFailed
from roll.sandbox.forkserver import ForkServer, ForkServerDied, kill_group
from roll.sandbox.process import Command, StartedProcess, supervise

P = ParamSpec("P")

_START_S = 300.0
_ROOT = Path(__file__).parents[2]
_MAIN = f"import sys; sys.path[0] = {str(_ROOT)!r}; from roll.proxy.preloaded_python_main import main; main()"


class PreloadedPython:
    """Runs scripts in forks of one Python process; restarts that process if it has died."""

    def __init__(self, folder: str, modules: Sequence[str]) -> None:
        """`folder` holds the scripts, and may hold modules."""
        self._program = (sys.executable, "-c", _MAIN, folder, *modules)
        self._modules = ", ".join(modules)
        self.server: ForkServer | None = None
        """None before the first agent."""
        self._starting = asyncio.Lock()

    async def run(self, command: Command, limits: ResourceLimits) -> ProgramResult:
        """Run the script `command.argv[0]` to its end or its limits; its process group is dead afterwards."""
        async with self._starting:
            if self.server is None or self.server.process.poll() is not None:
                await self.stop()
                self.server = ForkServer(self._program)
                if await asyncio.to_thread(self.server.await_ready, _START_S):
                    await self.stop()
                    raise ConfigError(f"agent.preload: cannot import {self._modules} (see above); leave it out")
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
        forking = asyncio.ensure_future(_in_thread(server.fork, order, streams))

        async def reap() -> int:
            return await _in_thread(server.reap, await forking)

        try:
            return StartedProcess(await asyncio.shield(forking), reap)
        except asyncio.CancelledError:
            kill_group(await forking)  # otherwise it would keep running unsupervised
            await reap()
            raise


async def _in_thread(method: Callable[P, int], *args: P.args, **kwargs: P.kwargs) -> int:
    try:
        return await asyncio.to_thread(method, *args, **kwargs)
    except ForkServerDied as error:
        raise SandboxFailed(f"agent: its fork server cannot be used ({error}); see its standard error") from None
