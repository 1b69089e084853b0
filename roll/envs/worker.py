"""A worker process that hosts environments."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import TypeAlias

from roll.data.tools import ParsedResponse, Tool
from roll.envs.base import StepResult
from roll.envs.guarded import GuardedEnv, unusable_reason
from roll.errors import ConfigError, EnvFailed
from roll.registry import ENVS
from roll.types import Message, Spec, Task

StartedEnv: TypeAlias = tuple[tuple[Message, ...], tuple[Tool, ...], tuple[str, ...]]
"""Opening messages, tools and agents of an environment."""


class EnvWorker:
    """Environments in one event loop, each under a number chosen by its owner."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._envs: dict[int, GuardedEnv] = {}

    async def answer(self) -> None:
        """Return as soon as the event loop is free; a liveness probe."""

    async def prepare(self, names: Sequence[str]) -> None:
        """Import environments in advance, so that no attempt waits for it; missing ones raise later."""
        for name in names:
            with contextlib.suppress(ConfigError, ImportError):
                ENVS[name]

    async def unusable_reason(self, spec: Spec, task: Task, *, tools: bool = True) -> str:
        """Why no environment can be built with these arguments; empty if one can."""
        return await unusable_reason(spec, task, tools=tools)

    async def start(self, number: int, spec: Spec, task: Task) -> StartedEnv:
        """Build and start an environment; returns its opening messages, tools and agents."""
        env = self._envs[number] = GuardedEnv(spec, task)
        return await env.start(), env.tools, env.agents

    async def step(self, number: int, response: str) -> StepResult:
        return await self._envs[number].step(response)

    async def call(self, number: int, response: ParsedResponse) -> StepResult:
        return await self._envs[number].call(response)

    async def close(self, number: int) -> None:
        """Close an environment, started or not."""
        env = self._envs.pop(number, None)
        if env is not None:
            await env.close()

    async def stop(self) -> None:
        """Close all remaining environments."""
        left, self._envs = list(self._envs.values()), {}
        outcomes = await asyncio.gather(*(env.close() for env in left), return_exceptions=True)
        for error in outcomes:
            if isinstance(error, BaseException) and not isinstance(error, EnvFailed):
                raise error
