"""A chat without a model, for tests of whatever talks to one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roll.errors import ConfigError
from roll.types import Message


class FakeChat:
    """`Chat` that gives the prepared answers in turn, and remembers what it was asked. Errors are raised."""

    def __init__(self, answers: Sequence[str | Exception], name: str = "fake") -> None:
        self.answers, self.name = list(answers), name
        self.asked, self.options = list[tuple[Message, ...]](), list[dict[str, Any]]()

    async def complete(self, messages: Sequence[Message], **options: Any) -> str:
        if not self.answers:
            raise ConfigError("FakeChat: no answer is left; prepare as many as will be asked")
        self.asked.append(tuple(messages))
        self.options.append(options)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer
