"""The border to environment code: whatever it does, what comes out is an answer that can be used, or an `EnvFailed`.

| what environment code does | what becomes of it |
|---|---|
| its name or its arguments do not fit, its import, `__init__`, `start`, `step` or `close` raises | `EnvFailed` |
| it cancels itself, or asks the process to leave | `EnvFailed` |
| it opens with nothing, with what is no message, or with text that no tokenizer can read | `EnvFailed` |
| it answers with no `Reply`, or one with numbers that are not finite | `EnvFailed` |
| it is not done and its `Reply` has no message | `EnvFailed` |
| its agents are no names, or it speaks to, or rewards, someone who is none of them | `EnvFailed` |

Each says which environment, which task, which turn and what it got, or which line raised. A failure costs the attempt
and not the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import reprlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from numbers import Real
from types import CoroutineType
from typing import Any, TypeGuard, cast

import numpy as np

from roll.data.tools import Spoken, Tool, declared
from roll.envs.base import Env, Reply, ToolEnv
from roll.errors import ConfigError, EnvFailed, RollError, described, one_line, source_of
from roll.registry import ENVS
from roll.types import Call, Message, Task

_LARGEST = 1e6
"""Most that a reward may be away from 0, as for rewards of other origin."""

_UNFIT = (ConfigError, TypeError, ValueError, ImportError, LookupError, AttributeError)
"""What a constructor raises where its arguments are to blame; anything else may be better the next time."""


async def unfit(call: Call, task: Task, *, tools: bool = True) -> str:
    """Why no environment of this name can be made with these arguments, found by trying; empty where one can.

    It is made and closed, and never started. Without `tools` the policy has no way to call any.
    """
    made: Any = None
    try:
        made = ENVS[call.name]
        env: Env = made(task, **call.arguments)
        found = _tools_of(env)
    except _UNFIT as error:
        return str(error) if isinstance(error, ConfigError) else _told(error, call, made)
    except (Exception, SystemExit):  # noqa: BLE001 - not the arguments' fault, and attempts will tell
        return ""
    with contextlib.suppress(Exception):  # if that is to say anything, an attempt will
        await env.close()
    return "it has tools, and the model's chat template has no way to call one" if found and not tools else ""


class Guarded:
    """An `Env` of someone else's, of which nothing is believed unseen."""

    def __init__(self, call: Call, task: Task) -> None:
        self._border = _Border(call, task)
        self._turn = 0
        self.tools: tuple[Tool, ...] = ()
        """What it has to be called, as far as it takes calls; found once it has started."""
        self.agents: tuple[str, ...] = ()
        """Who plays in it, if it says; found once it has started."""
        self._failed = True
        """Until it is known otherwise: that what has failed cannot be closed either is no news."""
        made: Any = None
        try:
            made = ENVS[call.name]
            self._env: Env = made(task, **call.arguments)
        except (Exception, SystemExit) as error:
            raise EnvFailed(f"{self._border}: {_told(error, call, made)}") from error
        self._border.env = self._env

    @property
    def actions(self) -> Sequence[str]:
        """What can be done now, where the environment says."""
        return cast(Sequence[str], getattr(self._env, "actions", ()))

    async def start(self) -> tuple[Message, ...]:
        border = self._border
        border.when = "starting"
        with border:
            found = await self._env.start()
        messages = _messages(found, border)
        if not messages:
            raise EnvFailed(f"{border}: said nothing (got no message); begin with one at least")
        with border:
            self.tools = _tools_of(self._env)
        self.agents = _agents_of(self._env, border)
        self._failed = False
        return messages

    def step(self, reply: str) -> CoroutineType[Any, Any, Reply]:
        return self._answer(self._env.step, reply)

    def call(self, said: Spoken) -> CoroutineType[Any, Any, Reply]:
        return self._answer(cast(ToolEnv, self._env).call, said)

    async def close(self) -> None:
        try:
            with self._border.closing():  # of its own: an answer may still be under way
                await self._env.close()
        except EnvFailed:
            if not self._failed:
                raise

    async def _answer(self, method: Callable[..., Awaitable[Any]], said: str | Spoken) -> Reply:
        border, self._failed = self._border, True
        border.when = self._turn
        self._turn += 1
        with border:
            found = await method(said)
        found = _checked(found, border)
        if not (found.messages or found.done):
            raise EnvFailed(f"{border}: said nothing and is not done; give its Reply `messages`, or `done=True`")
        if found.to or found.rewards:
            self._check_names(found, border)
        self._failed = False
        return found

    def _check_names(self, reply: Reply, place: _Border) -> None:
        for agent in (reply.to, *reply.rewards):
            if agent and agent not in self.agents:
                known = ", ".join(self.agents) or "none"
                raise EnvFailed(f"{place}: nobody in it is called {agent!r} (agents: {known}); name one of `agents`")


class _Border:
    """Whatever environment code raises in this block is an `EnvFailed`; as text, where that was."""

    __slots__ = ("_call", "_task", "env", "when")

    def __init__(self, call: Call, task: Task, when: str = "") -> None:
        self._call, self._task = call, task
        self.env: Env | None = None
        """Once there is one."""
        self.when: str | int = when
        """What it is asked for: the number of a turn, or another thing by name; empty: to be made."""

    def __str__(self) -> str:
        place = f"environment {self._call.name!r} of task {self._task.id!r}"
        when = f"turn {self.when}" if isinstance(self.when, int) else self.when
        return f"{place}, {when}" if when else place

    def closing(self) -> _Border:
        """Where the same environment is closed."""
        found = _Border(self._call, self._task, "closing")
        found.env = self.env
        return found

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is None:
            return
        if isinstance(error, asyncio.CancelledError):
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                return  # someone else's wish
            raise EnvFailed(f"{self}: cancelled itself; catch what it cancels") from error
        if isinstance(error, EnvFailed):
            raise EnvFailed(f"{self}: {error}") from error
        if isinstance(error, Exception | SystemExit):
            raise EnvFailed(f"{self}: {_told(error, self._call, type(self.env))}") from error


def _tools_of(env: Env) -> tuple[Tool, ...]:
    """None of one that does not take calls, whatever else it means by the name."""
    return declared(getattr(env, "tools", ())) if hasattr(env, "call") else ()


def _agents_of(env: Env, place: _Border) -> tuple[str, ...]:
    """None of one that does not say, whose one agent needs no name."""
    found: Any = getattr(env, "agents", None)
    if found is None:
        return ()
    if isinstance(found, str) or not all(isinstance(name, str) and name for name in found):
        raise EnvFailed(f"{place}: its agents are no names (got {reprlib.repr(found)}); give a tuple of texts")
    if len(set(found)) < len(found):
        raise EnvFailed(f"{place}: two of its agents share a name (got {reprlib.repr(found)}); give each its own")
    return tuple(found)


def _checked(reply: Any, place: _Border) -> Reply:
    """The same reply, if it is one."""
    return reply if _plain(reply) else _examined(reply, place)


def _plain(reply: Any) -> bool:
    """Whether a look at the types is enough, as it is for nearly all replies."""
    if not (type(reply) is Reply and type(reply.done) is bool and type(reply.state) is str and type(reply.to) is str):
        return False
    if type(reply.metrics) is not dict or type(reply.rewards) is not dict:
        return False
    for number in (reply.reward, *reply.metrics.values(), *reply.rewards.values()):
        if type(number) is not float or not -_LARGEST <= number <= _LARGEST:
            return False
    return _all_plain(reply.messages)


def _all_plain(messages: Any) -> TypeGuard[tuple[Message, ...]]:
    """Whether these are messages of plain characters, which any tokenizer can read."""
    if type(messages) is not tuple:
        return False
    for message in cast(tuple[Any, ...], messages):
        if type(message) is not Message or type(message.role) is not str or type(message.content) is not str:
            return False
        if not message.content.isascii() or not message.role.isascii():
            return False
    return True


def _examined(reply: Any, place: _Border) -> Reply:
    if not isinstance(reply, Reply):
        raise EnvFailed(f"{place}: not a Reply (got {reprlib.repr(reply)}); return one from `step`")
    messages = _messages(reply.messages, place)
    for what, numbers in (("metrics", reply.metrics), ("rewards", reply.rewards)):
        if not isinstance(cast(Any, numbers), dict):
            got = reprlib.repr(numbers)
            raise EnvFailed(f"{place}: {what} are not numbers by name (got {got}); give a dict")
    for name, value in (("reward", reply.reward), *reply.metrics.items(), *reply.rewards.items()):
        if not isinstance(cast(Any, value), Real | np.bool_) or not abs(float(value)) <= _LARGEST:
            got = reprlib.repr(value)
            raise EnvFailed(f"{place}: {name} is no finite number of at most {_LARGEST:g} (got {got}); give a float")
    if not isinstance(cast(Any, reply.done), bool) or not isinstance(cast(Any, reply.state), str):
        got = f"got done {reprlib.repr(reply.done)}, state {reprlib.repr(reply.state)}"
        raise EnvFailed(f"{place}: `done` must be true or false and `state` a text ({got}); give them so")
    plain, others = (
        {str(name): float(value) for name, value in numbers.items()} for numbers in (reply.metrics, reply.rewards)
    )
    return replace(reply, messages=messages, reward=float(reply.reward), metrics=plain, rewards=others)


def _messages(found: Any, place: _Border) -> tuple[Message, ...]:
    if _all_plain(found):
        return found
    if not isinstance(found, tuple | list):
        raise EnvFailed(f"{place}: not a tuple of messages (got {reprlib.repr(found)}); give Message('user', ...)")
    for message in cast(Sequence[Any], found):
        if not isinstance(message, Message):
            raise EnvFailed(f"{place}: not a message (got {reprlib.repr(message)}); give Message('user', ...)")
        if not (_readable(message.role) and _readable(message.content)):
            got = f"{reprlib.repr(message.content)} from {reprlib.repr(message.role)}"
            raise EnvFailed(f"{place}: a message that is no text (got {got}); give role and content")
    return tuple(cast(Sequence[Message], found))


def _readable(text: Any) -> bool:
    """Whether this is text, and one that UTF-8 can write."""
    if not isinstance(text, str):
        return False
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:  # half a character
        return False
    return True


def _told(error: BaseException, call: Call, made: Any) -> str:
    """An error in one line, with the line of the user's own environment that led to it, or where it was raised.

    `made` is what is to blame if it is the user's; what ours stumble over is in what they wrap.
    """
    if isinstance(error, RollError):  # which says itself what it is about
        return one_line(f"{type(error).__name__}: {error}")
    return described(error, source_of(made) if ":" in call.name else None)
