"""Customers of the retail environment: scripted, or played by a language model."""

from __future__ import annotations

import functools
import json
from typing import Any

from roll.chat.base import Chat
from roll.chat.openai import build_chat
from roll.errors import ConfigError
from roll.types import Message

STOP = "###STOP###"
CONSENT = "Yes. All that you need to know is in my first message."
_GREETING = "Hello. What can I do for you?"
_ROLE = """\
You play a customer who writes to the service desk of a shop. This is who you are and what you want:

{instruction}

Write what the customer says next: one short message, in your own words, and nothing else. Tell what the desk needs to \
know when it needs it, not everything at once. If you are asked for something that is not said above, you do not know \
it; never make anything up. When all that you want is done, or cannot be done, or you are handed over to a person, \
write {stop} and nothing else.
"""


class ScriptedCustomer:
    """States the whole request at once, agrees to every question, and ends after a message without a question."""

    def __init__(self, instruction: str) -> None:
        self._instruction = instruction

    async def open(self) -> str:
        return self._instruction

    async def answer(self, message: str) -> str | None:
        """The next message; None if the conversation is over."""
        return CONSENT if "?" in message else None


class ModelCustomer:
    """A language model that plays the customer."""

    def __init__(self, chat: Chat, instruction: str, seed: int) -> None:
        self._chat, self._seed = chat, seed
        self._conversation = [Message("system", _ROLE.format(instruction=instruction, stop=STOP))]

    async def open(self) -> str:
        return await self.answer(_GREETING) or STOP

    async def answer(self, message: str) -> str | None:
        self._conversation.append(Message("user", message))
        text = await self._chat.complete(tuple(self._conversation), seed=self._seed)
        self._conversation.append(Message("assistant", text))
        spoken = text.rpartition("</think>")[2].strip()
        return None if STOP in spoken or not spoken else spoken


def build_customer(user: Any, instruction: str, seed: int) -> ScriptedCustomer | ModelCustomer:
    """The configured customer: `scripted`, a section with `url` and `model`, or a `Chat`."""
    if user == "scripted":
        return ScriptedCustomer(instruction)
    if isinstance(user, str):
        raise ConfigError(f"retail: user: unknown (got {user!r}); write scripted, or {{url: ..., model: ...}}")
    chat = user if hasattr(user, "complete") else _load_chat(json.dumps(user, sort_keys=True, default=repr))
    return ModelCustomer(chat, instruction, seed)


@functools.lru_cache(maxsize=8)
def _load_chat(settings: str) -> Chat:
    """One chat for all attempts of a process, so that `max_concurrent` limits them together."""
    return build_chat(json.loads(settings), "retail: user")
