"""The boundary to environment code: every call returns a valid result or raises `EnvFailed`.

| environment code | outcome |
|---|---|
| wrong name or arguments; its import, `__init__`, `start`, `step` or `close` raises | `EnvFailed` |
| cancels itself, or raises `SystemExit` | `EnvFailed` |
| opens with no messages, with other objects, or with text that UTF-8 cannot encode | `EnvFailed` |
| returns no `StepResult`, or one with numbers that are not finite | `EnvFailed` |
| is not done and its `StepResult` has no message | `EnvFailed` |
| has agents that are no names, or addresses or rewards an unknown agent | `EnvFailed` |

Each error names the environment, the task, the turn, and the bad value or the line that raised. A failure costs the
attempt, not the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import reprlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from types import CoroutineType
from typing import Any, TypeAlias, TypeGuard, cast

import numpy as np

from roll.data.tools import ParsedResponse, Tool, parse_tools
from roll.envs.base import Env, StepResult, ToolEnv
from roll.errors import ConfigError, EnvFailed, RollError, describe_error, one_line, source_of
from roll.planted import fail_if_planted
from roll.registry import ENVS
from roll.types import Message, Spec, Task

_LARGEST = 1e6
"""Largest absolute value of a reward or metric."""

_BAD_ARGUMENTS = (ConfigError, TypeError, ValueError, ImportError, LookupError, AttributeError)
"""Constructor errors that the arguments cause; any other error may be transient."""


ReasonFor: TypeAlias = Callable[[Spec, Task], Awaitable[str]]
"""Why no environment can be made for a task; empty if one can."""


async def unusable_reason(spec: Spec, task: Task, *, tools: bool = True) -> str:
    """Why no environment can be built with these arguments; empty if one can.

    Builds and closes an environment without starting it. Without `tools` the policy cannot call any.
    """
    factory: Any = None
    try:
        factory = ENVS[spec.name]
        env: Env = factory(task, **spec.kwargs)
        env_tools = _tools_of(env)
    except _BAD_ARGUMENTS as error:
        return str(error) if isinstance(error, ConfigError) else _describe_error(error, spec, factory)
    except (Exception, SystemExit):  # noqa: BLE001 - not caused by the arguments; attempts will report it
        return ""
    with contextlib.suppress(Exception):  # an attempt will report it
        await env.close()
    return "it has tools, and the model's chat template has no way to call one" if env_tools and not tools else ""


async def unusable_source(name: str, spec: Spec, tasks: Sequence[Task], reason_for: ReasonFor = unusable_reason) -> str:
    """Why a source's environment cannot be used; empty if it can be for at least one of three tasks."""
    reason = ""
    for index in sorted({0, len(tasks) // 2, len(tasks) - 1}):  # a single task may be at fault
        reason = await reason_for(spec, tasks[index])
        if not reason:
            return ""
    return f"source {name!r}: environment {spec.name!r} cannot be used: {reason}; fix that first"


class GuardedEnv:
    """Wraps an `Env` and checks everything that it returns."""

    def __init__(self, spec: Spec, task: Task) -> None:
        self._context = _ErrorContext(spec, task)
        self._turn = 0
        self.tools: tuple[Tool, ...] = ()
        """Its tools, if it has a `call` method; known after `start`."""
        self.agents: tuple[str, ...] = ()
        """Its agents, if it has several; known after `start`."""
        self._failed = True
        """Whether the last call failed; then an error of `close` is ignored."""
        factory: Any = None
        try:
            factory = ENVS[spec.name]
            self._env: Env = factory(task, **spec.kwargs)
        except (Exception, SystemExit) as error:
            raise EnvFailed(f"{self._context}: {_describe_error(error, spec, factory)}") from error
        self._context.env = self._env

    @property
    def actions(self) -> Sequence[str]:
        """Currently possible actions, if the environment lists them."""
        return cast(Sequence[str], getattr(self._env, "actions", ()))

    async def start(self) -> tuple[Message, ...]:
        context = self._context
        context.when = "starting"
        with context:
            messages = await self._env.start()
        messages = _check_messages(messages, context)
        if not messages:
            raise EnvFailed(f"{context}: returned no message; open with at least one")
        with context:
            self.tools = _tools_of(self._env)
        self.agents = _agents_of(self._env, context)
        self._failed = False
        return messages

    def step(self, response: str) -> CoroutineType[Any, Any, StepResult]:
        return self._answer(self._env.step, response)

    def call(self, response: ParsedResponse) -> CoroutineType[Any, Any, StepResult]:
        return self._answer(cast(ToolEnv, self._env).call, response)

    async def close(self) -> None:
        try:
            context = self._context
            # A separate context: a step may still be running.
            with _ErrorContext(context.spec, context.task, self._env, "closing"):
                await self._env.close()
        except EnvFailed:
            if not self._failed:
                raise

    async def _answer(self, method: Callable[..., Awaitable[Any]], response: str | ParsedResponse) -> StepResult:
        context, self._failed = self._context, True
        context.when = self._turn
        self._turn += 1
        with context:
            fail_if_planted("step")
            result = await method(response)
        result = result if _passes_quick_check(result) else _check_slowly(result, context)
        if not (result.messages or result.done):
            raise EnvFailed(f"{context}: no message and not done; give the StepResult `messages`, or `done=True`")
        for agent in (result.to, *result.rewards):
            if agent and agent not in self.agents:
                known = ", ".join(self.agents) or "none"
                raise EnvFailed(f"{context}: no agent is called {agent!r} (agents: {known}); name one of `agents`")
        self._failed = False
        return result


@dataclass(slots=True)
class _ErrorContext:
    """Turns any exception of environment code in its block into `EnvFailed`; as text, the location for messages."""

    spec: Spec
    task: Task
    env: Env | None = None
    """None until it is built."""
    when: str | int = ""
    """The turn number, or the phase by name; empty while the environment is built."""

    def __str__(self) -> str:
        where = f"environment {self.spec.name!r} of task {self.task.id!r}"
        when = f"turn {self.when}" if isinstance(self.when, int) else self.when
        return f"{where}, {when}" if when else where

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is None:
            return
        if isinstance(error, asyncio.CancelledError):
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                return  # cancelled from outside
            raise EnvFailed(f"{self}: cancelled itself; catch what it cancels") from error
        if isinstance(error, EnvFailed):
            raise EnvFailed(f"{self}: {error}") from error
        if isinstance(error, Exception | SystemExit):
            raise EnvFailed(f"{self}: {_describe_error(error, self.spec, type(self.env))}") from error


def _tools_of(env: Env) -> tuple[Tool, ...]:
    """The declared tools; none if the environment has no `call` method."""
    return parse_tools(getattr(env, "tools", ())) if hasattr(env, "call") else ()


def _agents_of(env: Env, context: _ErrorContext) -> tuple[str, ...]:
    """The declared agents; none if the environment has a single, unnamed one."""
    agents: Any = getattr(env, "agents", None)
    if agents is None:
        return ()
    if isinstance(agents, str) or not all(isinstance(name, str) and name for name in agents):
        raise EnvFailed(f"{context}: agents must be non-empty names (got {reprlib.repr(agents)}); give a tuple of str")
    if len(set(agents)) < len(agents):
        raise EnvFailed(f"{context}: two agents share a name (got {reprlib.repr(agents)}); use distinct names")
    return tuple(agents)


def _passes_quick_check(result: Any) -> TypeGuard[StepResult]:
    """Whether a check of types suffices, as it does for nearly all results."""
    if type(result) is not StepResult or type(result.done) is not bool:
        return False
    if type(result.state) is not str or type(result.to) is not str:
        return False
    if type(result.metrics) is not dict or type(result.rewards) is not dict:
        return False
    for number in (result.reward, *result.metrics.values(), *result.rewards.values()):
        if type(number) is not float or not -_LARGEST <= number <= _LARGEST:
            return False
    return _all_ascii_messages(result.messages)


def _all_ascii_messages(messages: Any) -> TypeGuard[tuple[Message, ...]]:
    """Whether these are messages of ASCII text, which every tokenizer can encode."""
    if type(messages) is not tuple:
        return False
    for message in cast(tuple[Any, ...], messages):
        if type(message) is not Message or type(message.role) is not str or type(message.content) is not str:
            return False
        if not message.content.isascii() or not message.role.isascii():
            return False
    return True


def _check_slowly(result: Any, context: _ErrorContext) -> StepResult:
    if not isinstance(result, StepResult):
        raise EnvFailed(f"{context}: not a StepResult (got {reprlib.repr(result)}); return roll.envs.base.StepResult")
    messages = _check_messages(result.messages, context)
    for what, numbers in (("metrics", result.metrics), ("rewards", result.rewards)):
        if not isinstance(cast(Any, numbers), dict):
            got = reprlib.repr(numbers)
            raise EnvFailed(f"{context}: {what} are not numbers by name (got {got}); give a dict")
    for name, value in (("reward", result.reward), *result.metrics.items(), *result.rewards.items()):
        if not isinstance(cast(Any, value), Real | np.bool_) or not abs(float(value)) <= _LARGEST:
            got = reprlib.repr(value)
            raise EnvFailed(f"{context}: {name} is no finite number of at most {_LARGEST:g} (got {got}); give a float")
    if not isinstance(cast(Any, result.done), bool) or not isinstance(cast(Any, result.state), str):
        got = f"got done {reprlib.repr(result.done)}, state {reprlib.repr(result.state)}"
        raise EnvFailed(f"{context}: `done` must be true or false and `state` a text ({got}); give them so")
    plain, others = (
        {str(name): float(value) for name, value in numbers.items()} for numbers in (result.metrics, result.rewards)
    )
    return replace(result, messages=messages, reward=float(result.reward), metrics=plain, rewards=others)


def _check_messages(messages: Any, context: _ErrorContext) -> tuple[Message, ...]:
    if _all_ascii_messages(messages):
        return messages
    if not isinstance(messages, tuple | list):
        raise EnvFailed(f"{context}: not a tuple of messages (got {reprlib.repr(messages)}); give Message('user', ...)")
    for message in cast(Sequence[Any], messages):
        if not isinstance(message, Message):
            raise EnvFailed(f"{context}: not a message (got {reprlib.repr(message)}); give Message('user', ...)")
        if not (_encodable(message.role) and _encodable(message.content)):
            got = f"{reprlib.repr(message.content)} from {reprlib.repr(message.role)}"
            raise EnvFailed(f"{context}: a message is not text (got {got}); give role and content")
    return tuple(cast(Sequence[Message], messages))


def _encodable(text: Any) -> bool:
    """Whether this is text that UTF-8 can encode, so without a lone surrogate."""
    return isinstance(text, str) and (text.isascii() or text.encode(errors="ignore").decode() == text)


def _describe_error(error: BaseException, spec: Spec, factory: Any) -> str:
    """An error in one line, with the line of the user's environment that caused it, or the line that raised.

    `factory` is the user's class or function; shipped environments are not searched for the line.
    """
    if isinstance(error, RollError):  # its message names the cause
        return one_line(f"{type(error).__name__}: {error}")
    return describe_error(error, source_of(factory) if ":" in spec.name else None)
