"""Who wants something of a retail agent: by rule, or played by a language model."""

from __future__ import annotations

import functools
import json
from typing import Any, Protocol

from roll.chat.base import Chat
from roll.chat.openai import chat_of
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


class Customer(Protocol):
    """Who speaks first, and answers until all is said."""

    async def open(self) -> str: ...

    async def answer(self, said: str) -> str | None:
        """The next words; None where the conversation is over."""
        ...


class Scripted:
    """Says all at once, agrees to whatever is asked, and is content with a reply that asks nothing."""

    def __init__(self, instruction: str) -> None:
        self._instruction = instruction

    async def open(self) -> str:
        return self._instruction

    async def answer(self, said: str) -> str | None:
        return CONSENT if "?" in said else None


class Played:
    """A language model that is told whom to play."""

    def __init__(self, chat: Chat, instruction: str, seed: int) -> None:
        self._chat, self._seed = chat, seed
        self._heard = [Message("system", _ROLE.format(instruction=instruction, stop=STOP))]

    async def open(self) -> str:
        return await self.answer(_GREETING) or STOP

    async def answer(self, said: str) -> str | None:
        self._heard.append(Message("user", said))
        words = await self._chat.complete(tuple(self._heard), seed=self._seed)
        self._heard.append(Message("assistant", words))
        spoken = words.rpartition("</think>")[2].strip()
        return None if STOP in spoken or not spoken else spoken


def customer_of(user: Any, instruction: str, seed: int) -> Customer:
    """The customer that a configuration asks for: `scripted`, a section with `url` and `model`, or a `Chat`."""
    if user == "scripted":
        return Scripted(instruction)
    if isinstance(user, str):
        raise ConfigError(f"retail: user: no such user (got {user!r}); write scripted, or {{url: ..., model: ...}}")
    chat = user if hasattr(user, "complete") else _shared(json.dumps(user, sort_keys=True, default=repr))
    return Played(chat, instruction, seed)


@functools.lru_cache(maxsize=8)
def _shared(settings: str) -> Chat:
    """One chat for all attempts of a process, so that its `max_concurrent` bounds them together."""
    return chat_of(json.loads(settings), "retail: user")
