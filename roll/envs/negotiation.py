"""Negotiation: two agents divide items that each values differently; neither knows the other's values."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from operator import mul

from roll.envs.actions import extract_action, in_tag
from roll.envs.base import StepResult
from roll.envs.inputs import check_number
from roll.types import Message, Task

AGENTS = ("first", "second")
KINDS = ("books", "hats", "balls")
WORTH = 10
"""Value of all items together, to either agent."""


@dataclass(eq=False)
class Negotiation:
    """Two agents divide books, hats and balls. Each sees the counts and its own values.

    They alternate. A response is an offer, or `accept` (or `a`) for the other's last offer. An offer is the number
    of books, hats and balls that the speaker wants, such as `2 0 1` or `201`; missing numbers are 0. After a deal each
    gets the value of its items as a fraction of the total, 0 to 1. Without a deal within `max_turns` responses both
    get 0. An invalid response costs a turn and `format_penalty`, and the other agent gets its previous message again.
    The state is the offers so far and the next speaker.
    """

    task: Task
    max_turns: int = 8
    """Responses of both agents together."""
    most: int = 3
    """Largest count per kind; the smallest is 1."""
    terse: bool = False
    """Only numbers, for models with a small alphabet."""
    tag: str = ""
    """Tag around the offer: the last `<tag>` counts. Empty: the whole response is the offer."""
    format_penalty: float = 0.0

    def __post_init__(self) -> None:
        check_number("negotiation: max_turns", self.max_turns, 2, whole=True)
        check_number("negotiation: most", self.most, 1, 9, whole=True)
        check_number("negotiation: format_penalty", self.format_penalty, 0)
        self.counts, self.values = draw_game(random.Random(self.task.seed), self.most)
        self.agents = AGENTS
        self._offers: dict[str, tuple[int, ...]] = {}
        """The last offer of each agent: the items that it wants."""
        self._prompted = set[str]()
        self._num_turns = self._num_offers = 0
        self._done = False

    async def start(self) -> tuple[Message, ...]:
        return self._prompt()

    async def step(self, response: str) -> StepResult:
        assert not self._done, "negotiation: stepped after done; an environment is single-use"
        speaker, text = self._speaker, (extract_action(response, self.tag) or "").lower()
        self._num_turns += 1
        self._done = self._num_turns == self.max_turns
        if text in ("accept", "a") and (offered := self._offers.get(_other(speaker))) is not None:
            return self._deal(speaker, offered)
        offer = _parse_offer(text, self.counts)
        if offer is not None:
            self._offers[speaker] = offer
            self._num_offers += 1
        return StepResult(
            messages=self._prompt(),
            to=self._speaker,
            reward=-self.format_penalty if offer is None else 0.0,
            done=self._done,
            state=f"{self._speaker} after {self._num_turns}: {sorted(self._offers.items())}",
            metrics=self._metrics(deal=False, worth=0.0),
        )

    async def close(self) -> None:
        self._done = True

    @property
    def _speaker(self) -> str:
        return AGENTS[self._num_turns % 2]

    def _deal(self, speaker: str, offer: tuple[int, ...]) -> StepResult:
        self._done = True
        other = _other(speaker)
        left = tuple(available - claimed for available, claimed in zip(self.counts, offer, strict=True))
        parts = {other: self._worth(other, offer), speaker: self._worth(speaker, left)}
        return StepResult(
            messages=(Message("user", "deal"),),
            reward=parts[speaker],
            rewards={other: parts[other]},
            done=True,
            state=f"deal {offer}",
            metrics=self._metrics(deal=True, worth=sum(parts.values())),
        )

    def _worth(self, agent: str, things: tuple[int, ...]) -> float:
        """Value of the items as a fraction of the total."""
        return sum(map(mul, things, self.values[agent])) / WORTH

    def _prompt(self) -> tuple[Message, ...]:
        """The message to the next speaker: the other's offer, the first time after the counts and values."""
        speaker = self._speaker
        words = "" if speaker in self._prompted else self._rules(self.values[speaker])
        self._prompted.add(speaker)
        offer = self._offers.get(_other(speaker))
        if self.terse:
            offer_text = "-" if offer is None else "".join(map(str, offer))
        else:
            offer_text = "There is no offer yet." if offer is None else f"The other one would have {_describe(offer)}."
        return (Message("user", f"{words}{offer_text}\n"),)

    def _rules(self, values: tuple[int, ...]) -> str:
        if self.terse:
            return f"{''.join(map(str, self.counts))}:{','.join(map(str, values))}\n"
        worth = ", ".join(f"{value} for each of the {kind}" for value, kind in zip(values, KINDS, strict=True))
        offer, accept = in_tag("1 0 1", self.tag), in_tag("accept", self.tag)
        return (
            f"Divide {_describe(self.counts)} with another agent. To you they are worth {worth}; the other's values "
            f"you do not know.\nReply with what you would have, as three numbers (such as {offer}), or with {accept} "
            f"to take what the last offer leaves. After {self.max_turns} replies nobody gets anything.\n"
        )

    def _metrics(self, *, deal: bool, worth: float) -> dict[str, float]:
        counts = {"turns": float(self._num_turns), "offers": float(self._num_offers)}
        return {"success": float(deal), **counts, "worth": worth}


def draw_game(draws: random.Random, most: int) -> tuple[tuple[int, ...], dict[str, tuple[int, ...]]]:
    """The count of each kind and its value to either agent; all items together are worth `WORTH` to both."""
    while True:
        counts = tuple(draws.randint(1, most) for _ in KINDS)
        ways = _valuations(counts)
        if len(ways) > 1:
            one, other = draws.sample(ways, 2)
            return counts, {AGENTS[0]: one, AGENTS[1]: other}


@lru_cache(maxsize=1024)
def _valuations(counts: tuple[int, ...]) -> list[tuple[int, ...]]:
    """All values per kind that make the items together worth `WORTH`."""
    candidates = product(range(WORTH + 1), repeat=len(counts))
    return [each for each in candidates if sum(map(mul, counts, each)) == WORTH]


def _parse_offer(text: str, counts: tuple[int, ...]) -> tuple[int, ...] | None:
    """An offer of items that exist; None if the text is none."""
    if not re.fullmatch(r"[0-9]( ?[0-9]){0,2}", text):
        return None
    numbers = [int(number) for number in text if number != " "]
    offer = (*numbers, *[0] * (len(KINDS) - len(numbers)))
    return offer if all(claimed <= available for claimed, available in zip(offer, counts, strict=True)) else None


def _describe(things: tuple[int, ...]) -> str:
    return ", ".join(f"{number} {kind}" for number, kind in zip(things, KINDS, strict=True))


def _other(agent: str) -> str:
    return AGENTS[1 - AGENTS.index(agent)]
