"""How an attempt comes by its environment, and environments that live in the caller's own thread.

| call | waits for | woken by |
|---|---|---|
| `make` | where starts are limited: a turn, then the environment's start | a start that is over; the limit of time |
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeAlias, TypeVar, cast

from roll.data.tools import Spoken, Tool, ToolForm, read
from roll.envs.base import Env, Reply, ToolEnv
from roll.envs.guarded import Guarded, unfit
from roll.errors import ConfigError, EnvFailed, blame
from roll.types import Call, Message, Task

T = TypeVar("T")
MakeEnv: TypeAlias = Callable[[Call, Task], Awaitable[Env]]
"""The environment of that name for one attempt at a task; raises `EnvFailed` where there can be none."""


class Environments(Protocol):
    """Something with a lifetime that has a `MakeEnv`."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def make(self, call: Call, task: Task) -> Env: ...

    async def unfit(self, call: Call, task: Task, *, tools: bool = True) -> str:
        """Why there can be no environment of these arguments; empty where there can, or where that is not known."""
        ...

    def drain_counts(self) -> dict[str, float]:
        """What happened to them since the last call, as metrics."""
        ...


async def make_env(call: Call, task: Task) -> Env:
    """A `MakeEnv` in the caller's own thread; the environment starts when it is first asked to."""
    return Guarded(call, task)


class InlineEnvs:
    """Environments in the caller's own thread: a breakpoint works, and what hangs, hangs."""

    def __init__(self, *, start_limit: int | None = None, limit_s: float | None = None) -> None:
        self._turns = None if start_limit is None else Turns(start_limit, limit_s)

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def make(self, call: Call, task: Task) -> Env:
        """A `MakeEnv`."""
        if self._turns is None:
            return Guarded(call, task)
        return await self._turns.started(lambda: make_env(call, task), place_of(call, task))

    async def unfit(self, call: Call, task: Task, *, tools: bool = True) -> str:
        return await unfit(call, task, tools=tools)

    def drain_counts(self) -> dict[str, float]:
        return {}


class Turns:
    """Lets so many environments start at once, each within a limit of time that waiting for a turn costs nothing of."""

    def __init__(self, most: int | None, limit_s: float | None) -> None:
        self._free = contextlib.nullcontext() if most is None else asyncio.Semaphore(most)
        self._limit_s = limit_s

    async def started(self, make: Callable[[], Awaitable[Env]], place: str) -> Env:
        """The environment, once it has opened; what cannot start is closed."""
        async with self._free:
            with blame(EnvFailed, place):
                env = await make()
            try:
                with blame(EnvFailed, f"{place}, starting"):
                    return _Started(env, await within(self._limit_s, env.start()))
            except BaseException:
                with contextlib.suppress(Exception):  # that it cannot be closed either is no news
                    await env.close()
                raise


class _Started:
    """An `Env` that was started before it is asked to."""

    def __init__(self, env: Env, opening: tuple[Message, ...]) -> None:
        self._env, self._opening = env, opening
        self.step, self.close = env.step, env.close
        self.tools: Sequence[Tool] = getattr(env, "tools", ())
        self.agents: Sequence[str] = getattr(env, "agents", ())

    @property
    def actions(self) -> Sequence[str]:
        """What can be done now, where the environment says."""
        return getattr(self._env, "actions", ())

    async def start(self) -> tuple[Message, ...]:
        return self._opening

    async def call(self, said: Spoken) -> Reply:
        return await cast(ToolEnv, self._env).call(said)


def answering(env: Env, reply: str, tools: Sequence[Tool], form: ToolForm | None) -> Awaitable[Reply]:
    """What an environment will answer; one with tools gets the reply with its calls read, in that form."""
    if not tools:
        return env.step(reply)
    if form is None:
        raise ConfigError("the chat template has no way to call a tool; choose a model that has, or `template: plain`")
    return cast(ToolEnv, env).call(read(reply, tools, form))


def place_of(call: Call, task: Task) -> str:
    """Where an error is."""
    return f"environment {call.name!r} of task {task.id!r}"


def within(limit_s: float | None, answer: Awaitable[T]) -> Awaitable[T]:
    """An environment's answer; raises `TimeoutError` where it takes longer. None: it may take for ever."""
    return answer if limit_s is None else _limited(limit_s, answer)


async def _limited(limit_s: float, answer: Awaitable[T]) -> T:
    limit = asyncio.timeout(limit_s)
    try:
        async with limit:
            return await answer
    except TimeoutError:
        if not limit.expired():
            raise  # the environment's own
        raise TimeoutError(f"no answer within {limit_s:g} s (rollout.env_timeout_s)") from None
