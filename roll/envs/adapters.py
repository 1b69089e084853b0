"""What environments that were written for other libraries have in common: they are named, made, and asked.

An adapter imports nothing until an environment is made, and depends on no package: an object that has the methods will
do.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, cast

from roll.errors import ConfigError
from roll.registry import Table
from roll.types import Message, Task

ADAPTED: Table[Any] = Table("adapted environment")
"""Has no names of its own: everything is `package.module:attribute`."""


def made(name: str, options: Mapping[str, Any] | None) -> Any:
    """The object that a class or function of that name gives for these options."""
    return ADAPTED[name](**(options or {}))


async def settled(found: Any) -> Any:
    """What a method returned, waited for where it has to be."""
    return await found if inspect.isawaitable(found) else found


def parts(found: Any, num: int, what: str) -> tuple[Any, ...]:
    """What a method returned, if it is a tuple of so many."""
    if not isinstance(found, tuple) or len(cast(tuple[Any, ...], found)) != num:
        raise TypeError(f"{what} gave no tuple of {num} (got {found!r}); return one")
    return cast(tuple[Any, ...], found)


def opening(task: Task, prompt: str, text: str) -> tuple[Message, ...]:
    """The first words: the task's own messages if it has some, the prompt, and what the environment says."""
    return (*task.messages, Message("user", f"{prompt}\n{text}" if prompt else text))


def succeeded(info: Mapping[str, Any], *, ended: bool, reward: float) -> bool:
    """Whether an attempt came to a good end: as the environment says, else if it ended with a reward above 0."""
    told = info.get("is_success", info.get("success"))
    return ended and reward > 0 if told is None else bool(told)


def said(found: Any, what: str) -> tuple[Message, ...]:
    """Messages in our form: from text, from dictionaries with role and content, or from objects that have both."""
    if isinstance(found, str):
        return (Message("user", found),) if found else ()
    if not isinstance(found, list | tuple):
        raise ConfigError(f"{what}: neither text nor messages (got {found!r}); give one of them")
    return tuple(_message(each, what) for each in cast(list[Any], found))


def _message(found: Any, what: str) -> Message:
    fields = cast(Mapping[str, Any], found if isinstance(found, Mapping) else getattr(found, "__dict__", {}))
    role, content = fields.get("role"), fields.get("content")
    if not isinstance(role, str) or not isinstance(content, str | None):
        raise ConfigError(f"{what}: a message without a role, or with more than text (got {found!r}); give text")
    return Message(role, content or "")
