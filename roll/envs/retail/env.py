"""A customer writes, and what they want is looked up and done by tools, within the policy of the shop."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from roll.data.tools import Spoken, read
from roll.envs.base import Reply
from roll.envs.calls import Books, aloud
from roll.envs.retail.customers import STOP, customer_of
from roll.envs.retail.desk import TOOLS, TRANSFER, unfit, use
from roll.envs.retail.shop import Shop, tables_of
from roll.envs.rows import row_of
from roll.errors import ConfigError
from roll.tools.base import Answer
from roll.types import Message, Task

_SILENT = "Nothing was said. Call a tool, or say something to the customer."


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """A call that a right attempt may make."""

    name: str
    kwargs: dict[str, Any] = {}


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What a task's row says of a right attempt."""

    actions: tuple[Action, ...]
    """Those that lead to the database that is wanted."""
    outputs: tuple[str, ...] = ()
    """What has to be said to the customer, whatever else is."""


@dataclass(eq=False)
class Retail:
    """Customer service in a shop. The task's question is who the customer is and what they want.

    A reply without a call is said to the customer. The conversation ends when the customer has nothing more to say, or
    is handed over to a person; then the reward is 1 if the database is as it is after the row's `actions`, and all of
    its `outputs` were said, else 0. The last of `max_turns` replies ends it with 0.
    """

    tools = TOOLS

    task: Task
    database: str
    """Files of JSON, packed or not: `folder/{table}.json.gz`, where `{table}` is `orders`, `users` and `products`."""
    policy: str = ""
    """A file whose text the policy reads first."""
    user: Any = "scripted"
    """`scripted`, or a language model: a section with `url` and `model`, or a `Chat`."""
    max_turns: int = 30
    format_penalty: float = 0.0

    def __post_init__(self) -> None:
        self._books = Books("retail", self.max_turns, self.format_penalty)
        self._wish = row_of(self.task, Wish, "retail")
        for action in self._wish.actions:
            if why := unfit(action.name, action.kwargs):
                raise ConfigError(f"retail: task {self.task.id!r}: actions: {why}; correct its row")
        self._policy = _text(self.policy) if self.policy else ""
        self._shop = Shop(tables_of(self.database))
        self._customer = customer_of(self.user, self.task.messages[-1].content, self.task.seed)
        self._said: list[str] = []

    async def start(self) -> tuple[Message, ...]:
        rules = (Message("system", self._policy),) if self._policy else ()
        return (*rules, Message("user", await self._customer.open()))

    async def step(self, reply: str) -> Reply:
        return await self.call(read(reply, self.tools))

    async def call(self, said: Spoken) -> Reply:
        """The answer to one reply whose calls were read: by the tools, or by the customer."""
        self._books.open()
        if said.calls:
            return self._used(said)
        words = aloud(said.text)
        if said.fault is not None or not words:
            return self._books.refused(said, self._shop.digest(), silent=_SILENT)
        self._said.append(words)
        answer = await self._customer.answer(words)
        if answer is None:
            return self._books.heard(STOP, self._shop.digest(), reward=self._reward())
        return self._books.heard(answer, self._shop.digest())

    async def close(self) -> None:
        self._books.done = True

    def _used(self, said: Spoken) -> Reply:
        answers: list[Answer] = []
        for call in said.calls:
            answers.append(use(self._shop, call.name, call.arguments))
            if call.name == TRANSFER:
                return self._books.answered(answers, self._shop.digest(), reward=self._reward())
        return self._books.answered(answers, self._shop.digest())

    def _reward(self) -> float:
        wanted = Shop(tables_of(self.database))
        for action in self._wish.actions:
            use(wanted, action.name, action.kwargs)
        said = [_without_commas(words) for words in self._said]
        told = all(any(_without_commas(output) in words for words in said) for output in self._wish.outputs)
        return float(told and wanted.digest() == self._shop.digest())


def _without_commas(text: str) -> str:
    """How what was said is compared: case and the commas of large numbers do not matter."""
    return text.lower().replace(",", "")


@functools.lru_cache(maxsize=4)
def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"retail: policy: {path} cannot be read ({error}); check the path") from None
