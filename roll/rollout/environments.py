"""How attempts get their environments, and environments that run in the caller's thread.

| call | waits for | woken by |
|---|---|---|
| `make` | with a start limit: a free start slot, then the environment's start | another start ends; the timeout |
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeAlias, TypeVar, cast

from roll.data.tools import ParsedResponse, Tool, ToolForm, parse_response
from roll.envs.base import Env, StepResult, ToolEnv
from roll.envs.guarded import GuardedEnv, unusable_reason
from roll.errors import ConfigError, EnvFailed, blame
from roll.types import Message, Spec, Task

T = TypeVar("T")
MakeEnv: TypeAlias = Callable[[Spec, Task], Awaitable[Env]]
"""Makes the environment for one attempt at a task; raises `EnvFailed` if it cannot."""


class Environments(Protocol):
    """A service that makes environments."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def make(self, spec: Spec, task: Task) -> Env: ...

    async def unusable_reason(self, spec: Spec, task: Task, *, tools: bool = True) -> str:
        """Why no environment can be made with these arguments; empty if one can, or if that is unknown."""
        ...

    def drain_counts(self) -> dict[str, float]:
        """Counts since the last call, as metrics."""
        ...


async def make_inline_env(spec: Spec, task: Task) -> Env:
    """A `MakeEnv` in the caller's thread, without a start limit."""
    return GuardedEnv(spec, task)


class InlineEnvs:
    """Environments in the caller's thread: breakpoints work, and an environment that blocks, blocks the run."""

    def __init__(self, *, start_limit: int | None = None, limit_s: float | None = None) -> None:
        self._starts = None if start_limit is None else StartLimiter(start_limit, limit_s)

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def make(self, spec: Spec, task: Task) -> Env:
        """A `MakeEnv`."""
        if self._starts is None:
            return GuardedEnv(spec, task)
        return await self._starts.start(lambda: make_inline_env(spec, task), env_label(spec, task))

    async def unusable_reason(self, spec: Spec, task: Task, *, tools: bool = True) -> str:
        return await unusable_reason(spec, task, tools=tools)

    def drain_counts(self) -> dict[str, float]:
        return {}


class StartLimiter:
    """Caps concurrent environment starts; the start timeout excludes time spent queued."""

    def __init__(self, limit: int | None, timeout_s: float | None) -> None:
        self._slots = contextlib.nullcontext() if limit is None else asyncio.Semaphore(limit)
        self._timeout_s = timeout_s

    async def start(self, make: Callable[[], Awaitable[Env]], where: str) -> Env:
        """Make and start an environment; one that fails to start is closed."""
        async with self._slots:
            with blame(EnvFailed, where):
                env = await make()
            try:
                with blame(EnvFailed, f"{where}, starting"):
                    return _StartedEnv(env, await within(self._timeout_s, env.start()))
            except BaseException:
                with contextlib.suppress(Exception):  # the error of its start matters more
                    await env.close()
                raise


class EnvWrapper:
    """Access to another environment and its optional attributes."""

    def __init__(self, env: Env) -> None:
        self._env, self.close = env, env.close

    @property
    def actions(self) -> Sequence[str]:
        """Possible actions, if the environment lists them."""
        return getattr(self._env, "actions", ())

    @property
    def agents(self) -> Sequence[str]:
        """Names of the agents, if the environment has any."""
        return getattr(self._env, "agents", ())

    @property
    def tools(self) -> Sequence[Tool]:
        """Tools, if the environment has any."""
        return getattr(self._env, "tools", ())


class _StartedEnv(EnvWrapper):
    """An `Env` that has already started; its `start` returns the first messages again."""

    def __init__(self, env: Env, messages: tuple[Message, ...]) -> None:
        super().__init__(env)
        self._messages, self.step = messages, env.step

    async def start(self) -> tuple[Message, ...]:
        return self._messages

    async def call(self, response: ParsedResponse) -> StepResult:
        return await cast(ToolEnv, self._env).call(response)


def step_env(env: Env, response: str, tools: Sequence[Tool], form: ToolForm | None) -> Awaitable[StepResult]:
    """Send a response to the environment; one with tools receives parsed calls, in the given form."""
    if not tools:
        return env.step(response)
    if form is None:
        raise ConfigError("the chat template has no way to call a tool; choose a model that has, or `template: plain`")
    return cast(ToolEnv, env).call(parse_response(response, tools, form))


def env_label(spec: Spec, task: Task) -> str:
    """Prefix of the environment's errors."""
    return f"environment {spec.name!r} of task {task.id!r}"


def within(timeout_s: float | None, result: Awaitable[T]) -> Awaitable[T]:
    """The environment's result; raises `TimeoutError` if it takes longer. None: no timeout."""
    return result if timeout_s is None else _with_timeout(timeout_s, result)


async def _with_timeout(timeout_s: float, result: Awaitable[T]) -> T:
    timeout = asyncio.timeout(timeout_s)
    try:
        async with timeout:
            return await result
    except TimeoutError:
        if not timeout.expired():
            raise  # raised by the environment itself
        raise TimeoutError(f"no answer within {timeout_s:g} s (rollout.env_timeout_s)") from None
