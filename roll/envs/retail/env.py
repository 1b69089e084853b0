"""Customer service: the policy answers a customer and calls tools, within the rules of the shop."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from roll.data.tools import ParsedResponse, parse_response
from roll.envs.base import StepResult
from roll.envs.inputs import parse_row
from roll.envs.retail.customers import STOP, build_customer
from roll.envs.retail.desk import TOOLS, TRANSFER, action_error, call_tool
from roll.envs.retail.shop import Shop, read_tables
from roll.envs.turn_recorder import ToolTurnRecorder, without_thinking
from roll.errors import ConfigError
from roll.tools.base import ToolResult
from roll.types import Message, Task

_NO_MESSAGE = "Nothing was said. Call a tool, or say something to the customer."


class ReferenceAction(msgspec.Struct, frozen=True, kw_only=True):
    """A call of the reference solution."""

    name: str
    kwargs: dict[str, Any] = {}


class RetailTask(msgspec.Struct, frozen=True, kw_only=True):
    """The reference solution in a task's row."""

    actions: tuple[ReferenceAction, ...]
    """The actions that lead to the right database."""
    outputs: tuple[str, ...] = ()
    """Texts that the agent must state to the customer."""


@dataclass(eq=False)
class Retail:
    """Customer service in a shop. The task's question describes the customer and the request.

    A response without a call goes to the customer. The conversation ends when the customer ends it or is transferred to
    a person. Then the reward is 1 if the database equals the one after the row's `actions` and all its `outputs` were
    stated, else 0. The last of `max_turns` responses ends it with 0.
    """

    tools = TOOLS

    task: Task
    database: str
    """JSON files, gzipped or not: `folder/{table}.json.gz`, where `{table}` is `orders`, `users` and `products`."""
    policy: str = ""
    """A file with the shop's rules, shown to the policy as the system message."""
    user: Any = "scripted"
    """`scripted`, or a language model: a section with `url` and `model`, or a `Chat`."""
    max_turns: int = 30
    format_penalty: float = 0.0

    def __post_init__(self) -> None:
        self._recorder = ToolTurnRecorder("retail", self.max_turns, self.format_penalty)
        self._reference = parse_row(self.task, RetailTask, "retail")
        for action in self._reference.actions:
            if why := action_error(action.name, action.kwargs):
                raise ConfigError(f"retail: task {self.task.id!r}: actions: {why}; correct its row")
        self._policy = _read_policy(self.policy) if self.policy else ""
        self._shop = Shop(read_tables(self.database))
        self._customer = build_customer(self.user, self.task.messages[-1].content, self.task.seed)
        self._sent: list[str] = []

    async def start(self) -> tuple[Message, ...]:
        rules = (Message("system", self._policy),) if self._policy else ()
        return (*rules, Message("user", await self._customer.open()))

    async def step(self, response: str) -> StepResult:
        return await self.call(parse_response(response, self.tools))

    async def call(self, response: ParsedResponse) -> StepResult:
        """The result for one response with parsed calls: from the tools, or from the customer."""
        self._recorder.check_open()
        results: list[ToolResult] = []
        for call in response.calls:
            results.append(call_tool(self._shop, call.name, call.arguments))
            if call.name == TRANSFER:
                return self._recorder.answer_calls(results, self._shop.digest(), reward=self._reward())
        if results:
            return self._recorder.answer_calls(results, self._shop.digest())
        text = without_thinking(response.text)
        if response.fault is not None or not text:
            return self._recorder.reject(response, self._shop.digest(), no_call=_NO_MESSAGE)
        self._sent.append(text)
        answer = await self._customer.answer(text)
        reward = self._reward() if answer is None else None
        return self._recorder.answer_text(STOP if answer is None else answer, self._shop.digest(), reward)

    async def close(self) -> None:
        self._recorder.done = True

    def _reward(self) -> float:
        expected = Shop(read_tables(self.database))
        for action in self._reference.actions:
            call_tool(expected, action.name, action.kwargs)
        sent = [_without_commas(text) for text in self._sent]
        all_stated = all(any(_without_commas(output) in text for text in sent) for output in self._reference.outputs)
        return float(all_stated and expected.digest() == self._shop.digest())


def _without_commas(text: str) -> str:
    """Lower case without commas, so that `1,000` equals `1000`."""
    return text.lower().replace(",", "")


@functools.lru_cache(maxsize=4)
def _read_policy(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"retail: policy: {path} cannot be read ({error}); check the path") from None
