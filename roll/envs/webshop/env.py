"""WebShop: find a product by search and clicks, choose its options, buy it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from roll.envs.actions import extract_action
from roll.envs.base import StepResult
from roll.envs.turn_recorder import TurnRecorder
from roll.envs.webshop.catalogue import read_catalogue
from roll.envs.webshop.pages import BoughtPage, FrontPage, Page, key, links, search, text
from roll.envs.webshop.reward import parse_goal, purchase_reward
from roll.types import Message, Task

_ACTION = re.compile(r"(search|click)\[(.*)\]", re.DOTALL | re.IGNORECASE)
UNKNOWN = "That cannot be done here."


@dataclass(eq=False)
class WebShop:
    """A shop in which the policy searches for and buys the product that the task's question describes.

    A response is `search[words]`, only on the front page, or `click[label]` for a label in square brackets. Any other
    response gets the same page again and costs a turn and `format_penalty`. Buying ends the attempt with the reward of
    `purchase_reward` against the task's answer; 1 is a success. The last of `max_turns` responses ends it with 0. A
    response is effective if it leads to another page or choice. The state is what the page shows.
    """

    task: Task
    catalogue: str
    """A `.jsonl` or `.jsonl.gz` file with one `catalogue.Product` per line."""
    max_turns: int = 15
    tag: str = ""
    """Tag around the action: the last `<tag>` counts. Empty: the whole response is the action."""
    format_penalty: float = 0.0

    def __post_init__(self) -> None:
        self._recorder = TurnRecorder("webshop", self.max_turns, self.format_penalty)
        self._shop = read_catalogue(self.catalogue)
        self._goal = parse_goal(self.task, self._shop)
        self._page: Page = FrontPage()

    async def start(self) -> tuple[Message, ...]:
        *before, last = self.task.messages
        return (*before, Message(last.role, f"WebShop\nInstruction: {last.content}\n\n{text(self._page, self._shop)}"))

    async def step(self, response: str) -> StepResult:
        self._recorder.check_open()
        page = self._next(extract_action(response, self.tag))
        effective = page is not None and page != self._page
        self._page = self._page if page is None else page
        shown = text(self._page, self._shop)
        return self._recorder.record(
            [Message("user", f"{UNKNOWN}\n\n{shown}" if page is None else shown)],
            key(self._page, self._shop),
            valid=page is not None,
            effective=effective,
            reward=self._reward(),
        )

    async def close(self) -> None:
        self._recorder.done = True

    def _next(self, action: str | None) -> Page | None:
        """The page that an action leads to; None if the action is impossible here."""
        match = None if action is None else _ACTION.fullmatch(action)
        if match is None:
            return None
        verb, words = match[1].lower(), _normalise_label(match[2])
        if verb == "search":
            return search(self._shop, words) if words and isinstance(self._page, FrontPage) else None
        return {_normalise_label(label): page for label, page in links(self._page, self._shop).items()}.get(words)

    def _reward(self) -> float | None:
        """The reward of the purchase; None before it."""
        if not isinstance(self._page, BoughtPage):
            return None
        item, products = self._page.item, self._shop.products
        target = products[self._shop.positions[self._goal.asin.upper()]]
        return purchase_reward(products[item.product], dict(item.chosen), self._goal, target)


def _normalise_label(text: str) -> str:
    """Lower case with single spaces: how labels are compared."""
    return " ".join(text.lower().split())
