"""How an attempt comes by its environment, and environments that live in the caller's own thread.

| call | waits for | woken by |
|---|---|---|
| `make` | where starts are limited: a turn, then the environment's start | a start that is over; the limit of time |
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeAlias, TypeVar

from roll.envs.base import Env
from roll.envs.guarded import Guarded
from roll.errors import EnvFailed, blame
from roll.types import Call, Message, Task

T = TypeVar("T")
MakeEnv: TypeAlias = Callable[[Call, Task], Awaitable[Env]]
"""The environment of that name for one attempt at a task; raises `EnvFailed` where there can be none."""


class Environments(Protocol):
    """Something with a lifetime that has a `MakeEnv`."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def make(self, call: Call, task: Task) -> Env: ...


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

    @property
    def actions(self) -> Sequence[str]:
        """What can be done now, where the environment says."""
        return getattr(self._env, "actions", ())

    async def start(self) -> tuple[Message, ...]:
        return self._opening


def place_of(call: Call, task: Task) -> str:
    """Where an error is."""
    return f"environment {call.name!r} of task {task.id!r}"


async def within(limit_s: float | None, answer: Awaitable[T]) -> T:
    """An environment's answer; raises `TimeoutError` where it takes longer. None: it may take for ever."""
    if limit_s is None:
        return await answer
    limit = asyncio.timeout(limit_s)
    try:
        async with limit:
            return await answer
    except TimeoutError:
        if not limit.expired():
            raise  # the environment's own
        raise TimeoutError(f"no answer within {limit_s:g} s (rollout.env_timeout_s)") from None
