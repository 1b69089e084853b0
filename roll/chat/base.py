"""The protocol of a chat model, as judges and environments use it, and a chat without a model for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from roll.errors import ConfigError
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


class FakeChat:
    """`Chat` that returns the prepared answers in order and records its requests. Prepared errors are raised."""

    def __init__(self, answers: Sequence[str | Exception], name: str = "fake") -> None:
        self.answers, self.name = list(answers), name
        self.requests, self.options = list[tuple[Message, ...]](), list[dict[str, Any]]()

    async def complete(self, messages: Sequence[Message], **options: Any) -> str:
        if not self.answers:
            raise ConfigError("FakeChat: no answer is left; prepare one per request")
        self.requests.append(tuple(messages))
        self.options.append(options)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer
