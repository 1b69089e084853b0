"""The protocol of a chat model, as judges and environments use it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from roll.types import Message


class Chat(Protocol):
    """A chat model: a judge, an external teacher, an evaluator."""

    @property
    def name(self) -> str:
        """The model's name; answers may be cached under it."""
        ...

    async def complete(self, messages: Sequence[Message], **options: Any) -> str:
        """The model's response. Options, such as `temperature` and `seed`, override those of the constructor.

        Raises `EngineFailed` if no response comes, `ConfigError` if none ever can.
        """
        ...
