"""WebShop: find a product by search and clicks, choose its options, buy it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from roll.envs.actions import Tally, inside
from roll.envs.arguments import check_number
from roll.envs.base import Reply
from roll.envs.webshop.catalogue import catalogue_of
from roll.envs.webshop.pages import Bought, Front, Page, key, links, search, text
from roll.envs.webshop.reward import goal_of, worth
from roll.errors import ConfigError
from roll.types import Message, Task

_ACTION = re.compile(r"(search|click)\[(.*)\]", re.DOTALL | re.IGNORECASE)
UNKNOWN = "That cannot be done here."


@dataclass(eq=False)
class WebShop:
    """A shop in which the product that the task's question describes is searched for, and bought.

    A reply is `search[words]`, on the front page alone, or `click[label]` for what stands in square brackets. Any other
    is answered with the same page again, and costs a turn and `format_penalty`. Buying ends the attempt with the reward
    of `reward.worth` against the task's answer, of which 1 is a success; the last of `max_turns` replies ends it with
    0. A reply was effective if it led to another page or choice. Its state is what the page shows.
    """

    task: Task
    catalogue: str
    """A `.jsonl` or `.jsonl.gz` file with one product a line, as `catalogue.Product` has it."""
    max_turns: int = 15
    tag: str = ""
    """Where an action stands in a reply: within the last `<tag>`. Empty: the reply is the action."""
    format_penalty: float = 0.0

    def __post_init__(self) -> None:
        check_number("webshop: max_turns", self.max_turns, 1, whole=True)
        check_number("webshop: format_penalty", self.format_penalty, 0)
        if not self.task.messages:
            raise ConfigError(f"webshop: task {self.task.id!r} does not say what to buy; give its row a 'prompt'")
        self._shop = catalogue_of(self.catalogue)
        self._goal = goal_of(self.task, self._shop)
        self._page: Page = Front()
        self._tally = Tally()
        self._done = False

    async def start(self) -> tuple[Message, ...]:
        *before, last = self.task.messages
        return (*before, Message(last.role, f"WebShop\nInstruction: {last.content}\n\n{text(self._page, self._shop)}"))

    async def step(self, reply: str) -> Reply:
        assert not self._done, "webshop: stepped after done; an environment is single-use"
        page = self._next(inside(reply, self.tag))
        self._tally.add(valid=page is not None, effective=page is not None and page != self._page)
        self._page = self._page if page is None else page
        reward = self._reward()
        self._done = isinstance(self._page, Bought) or self._tally.num_turns == self.max_turns
        shown = text(self._page, self._shop)
        return Reply(
            messages=(Message("user", f"{UNKNOWN}\n\n{shown}" if page is None else shown),),
            reward=reward - (self.format_penalty if page is None else 0.0),
            done=self._done,
            state=key(self._page, self._shop),
            metrics=self._tally.metrics(success=reward == 1),
        )

    async def close(self) -> None:
        self._done = True

    def _next(self, action: str | None) -> Page | None:
        """The page that an action leads to; None if it is none of the things that can be done here."""
        found = None if action is None else _ACTION.fullmatch(action)
        if found is None:
            return None
        verb, words = found[1].lower(), _spaced(found[2])
        if verb == "search":
            return search(self._shop, words) if words and isinstance(self._page, Front) else None
        return {_spaced(label): page for label, page in links(self._page, self._shop).items()}.get(words)

    def _reward(self) -> float:
        if not isinstance(self._page, Bought):
            return 0.0
        item, products = self._page.item, self._shop.products
        wanted = products[self._shop.number[self._goal.asin.upper()]]
        return worth(products[item.product], dict(item.chosen), self._goal, wanted)


def _spaced(text: str) -> str:
    """Lower case, one space between words: how labels are compared."""
    return " ".join(text.lower().split())
