"""What the rooms above ask of a language model that they only talk to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from roll.types import Message


class Chat(Protocol):
    """A language model that is talked to: judges, external teachers, evaluation."""

    @property
    def name(self) -> str:
        """Which model answers; what one of this name has said may be remembered as said by all."""
        ...

    async def complete(self, messages: Sequence[Message], **options: Any) -> str:
        """The model's reply. Options, such as `temperature` and `seed`, go before those the chat was made with.

        Raises `EngineFailed` where no reply comes, `ConfigError` where none ever will.
        """
        ...
