"""Shared code of the adapters for environments written for other libraries.

An adapter imports nothing until an environment is built and depends on no package: any object with the right methods
works.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, cast

from roll.errors import ConfigError
from roll.registry import Table
from roll.types import Message

ADAPTED: Table[Any] = Table("adapted environment")
"""Has no short names: every name is `package.module:attribute`."""


async def maybe_await(value: Any) -> Any:
    """The value, awaited if it is awaitable."""
    return await value if inspect.isawaitable(value) else value


def to_messages(value: Any, what: str) -> tuple[Message, ...]:
    """Convert text, dicts with role and content, or objects with both attributes to messages."""
    if isinstance(value, str):
        return (Message("user", value),) if value else ()
    if not isinstance(value, list | tuple):
        raise ConfigError(f"{what}: neither text nor messages (got {value!r}); return one of them")
    return tuple(_message(each, what) for each in cast(list[Any], value))


def _message(message: Any, what: str) -> Message:
    fields = cast(Mapping[str, Any], message if isinstance(message, Mapping) else getattr(message, "__dict__", {}))
    role, content = fields.get("role"), fields.get("content")
    if not isinstance(role, str) or not isinstance(content, str | None):
        raise ConfigError(f"{what}: a message without a role, or with more than text (got {message!r}); give text")
    return Message(role, content or "")
