"""A process full of environments."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import TypeAlias

from roll.data.tools import Spoken, Tool
from roll.envs.base import Reply
from roll.envs.guarded import Guarded, unfit
from roll.errors import ConfigError, EnvFailed
from roll.registry import ENVS
from roll.types import Call, Message, Task

Started: TypeAlias = tuple[tuple[Message, ...], tuple[Tool, ...], tuple[str, ...]]
"""What an environment opens with, its tools, and its agents."""


class EnvWorker:
    """Many environments in one event loop, each under a number that whoever started it chose."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._envs: dict[int, Guarded] = {}

    async def answer(self) -> None:
        """Nothing, as soon as the event loop comes round."""

    async def prepare(self, names: Sequence[str]) -> None:
        """Import what environments need, so that none of them has to wait for it; what is not there is told later."""
        for name in names:
            with contextlib.suppress(ConfigError, ImportError):
                ENVS[name]

    async def unfit(self, call: Call, task: Task, *, tools: bool = True) -> str:
        """Why there can be no environment of these arguments; empty where there can."""
        return await unfit(call, task, tools=tools)

    async def start(self, number: int, call: Call, task: Task) -> Started:
        """A fresh environment: what it opens with, its tools and its agents. One that cannot start is closed again."""
        env = self._envs[number] = Guarded(call, task)
        return await env.start(), env.tools, env.agents

    async def step(self, number: int, reply: str) -> Reply:
        return await self._envs[number].step(reply)

    async def call(self, number: int, said: Spoken) -> Reply:
        return await self._envs[number].call(said)

    async def close(self, number: int) -> None:
        """Let go of an environment, whether or not it was ever started."""
        env = self._envs.pop(number, None)
        if env is not None:
            await env.close()

    async def stop(self) -> None:
        """Close all environments that are left."""
        left, self._envs = list(self._envs.values()), {}
        found = await asyncio.gather(*(env.close() for env in left), return_exceptions=True)
        for error in found:
            if isinstance(error, BaseException) and not isinstance(error, EnvFailed):
                raise error
