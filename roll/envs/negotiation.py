"""Negotiation: two agents divide some things that each of them values in its own way, and neither knows the other's."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from functools import lru_cache

from roll.envs.actions import inside
from roll.envs.arguments import check_number
from roll.envs.base import Reply
from roll.types import Message, Task

AGENTS = ("first", "second")
KINDS = ("books", "hats", "balls")
WORTH = 10
"""What all things together are worth to either agent."""
_ACCEPT = ("accept", "a")


@dataclass(eq=False)
class Negotiation:
    """Books, hats and balls lie on a table. Either agent is told how many, and what each is worth to it alone.

    They take turns. A reply is an offer, the numbers of books, hats and balls that the speaker would have, such as
    `2 0 1` or `201`, where what is left out is 0, or it is `accept` (or `a`) for the other's last offer. Then each gets
    a reward: the worth of its things as a part of all of them, 0 to 1. Without a deal within `max_turns` replies nobody
    gets anything. A reply that is neither costs a turn and `format_penalty`, and the other one hears what it heard
    before. The state is what was offered and who is asked.
    """

    task: Task
    max_turns: int = 8
    """Replies of both together."""
    most: int = 3
    """Of each kind; at least one is there."""
    terse: bool = False
    """Say numbers alone, for models that know a few characters."""
    tag: str = ""
    """Where an offer stands in a reply: within the last `<tag>`. Empty: the reply is the offer."""
    format_penalty: float = 0.0

    def __post_init__(self) -> None:
        check_number("negotiation: max_turns", self.max_turns, 2, whole=True)
        check_number("negotiation: most", self.most, 1, 9, whole=True)
        check_number("negotiation: format_penalty", self.format_penalty, 0)
        draws = random.Random(self.task.seed)
        self.counts, self.values = drawn(draws, self.most)
        self.agents = AGENTS
        self._offers: dict[str, tuple[int, ...]] = {}
        """What each would have, by its last offer."""
        self._heard = set[str]()
        self._num_turns = self._num_offers = 0
        self._done = False

    async def start(self) -> tuple[Message, ...]:
        return self._asked()

    async def step(self, reply: str) -> Reply:
        assert not self._done, "negotiation: stepped after done; an environment is single-use"
        speaker, said = self._speaker, _read(inside(reply, self.tag) or "")
        self._num_turns += 1
        last = self._num_turns == self.max_turns
        if said == "accept" and (offered := self._offers.get(_other(speaker))) is not None:
            return self._deal(speaker, offered)
        fair = isinstance(said, tuple) and all(own <= there for own, there in zip(said, self.counts, strict=True))
        if isinstance(said, tuple) and fair:
            self._offers[speaker] = said
            self._num_offers += 1
        self._done = last
        return Reply(
            messages=self._asked(),
            to=self._speaker,
            reward=0.0 if fair else -self.format_penalty,
            done=last,
            state=f"{self._speaker} after {self._num_turns}: {sorted(self._offers.items())}",
            metrics=self._metrics(deal=False, parts={}),
        )

    async def close(self) -> None:
        self._done = True

    @property
    def _speaker(self) -> str:
        return AGENTS[self._num_turns % 2]

    def _deal(self, speaker: str, offer: tuple[int, ...]) -> Reply:
        self._done = True
        other = _other(speaker)
        left = tuple(there - taken for there, taken in zip(self.counts, offer, strict=True))
        parts = {other: self._worth(other, offer), speaker: self._worth(speaker, left)}
        return Reply(
            messages=(Message("user", "deal"),),
            reward=parts[speaker],
            rewards={other: parts[other]},
            done=True,
            state=f"deal {offer}",
            metrics=self._metrics(deal=True, parts=parts),
        )

    def _worth(self, agent: str, things: tuple[int, ...]) -> float:
        """As a part of all there is."""
        return sum(number * value for number, value in zip(things, self.values[agent], strict=True)) / WORTH

    def _asked(self) -> tuple[Message, ...]:
        """What whoever is next is told: the first time what there is, then the other's offer."""
        speaker, words = self._speaker, ""
        if speaker not in self._heard:
            words = _short(self.counts, self.values[speaker]) if self.terse else self._rules(self.values[speaker])
        self._heard.add(speaker)
        offer = self._offers.get(_other(speaker))
        if self.terse:
            told = "-" if offer is None else "".join(map(str, offer))
        else:
            told = "There is no offer yet." if offer is None else f"The other one would have {_listed(offer)}."
        return (Message("user", f"{words}{told}\n"),)

    def _rules(self, values: tuple[int, ...]) -> str:
        there = _listed(self.counts)
        worth = ", ".join(f"{value} for each of the {kind}" for value, kind in zip(values, KINDS, strict=True))
        form = f"<{self.tag}>{{}}</{self.tag}>" if self.tag else "{}"
        return (
            f"Divide {there} with another agent. To you they are worth {worth}; the other's values you do not know.\n"
            f"Reply with what you would have, as three numbers (such as {form.format('1 0 1')}), or with "
            f"{form.format('accept')} to take what the last offer leaves. After {self.max_turns} replies nobody gets "
            "anything.\n"
        )

    def _metrics(self, *, deal: bool, parts: dict[str, float]) -> dict[str, float]:
        return {
            "success": float(deal),
            "turns": float(self._num_turns),
            "offers": float(self._num_offers),
            "worth": sum(parts.values()),
        }


def drawn(draws: random.Random, most: int) -> tuple[tuple[int, ...], dict[str, tuple[int, ...]]]:
    """How many there are of each kind, and what one is worth to either agent; all together make `WORTH` for both."""
    while True:
        counts = tuple(draws.randint(1, most) for _ in KINDS)
        ways = _values(counts)
        if len(ways) > 1:
            one, other = draws.sample(ways, 2)
            return counts, {AGENTS[0]: one, AGENTS[1]: other}


@lru_cache(maxsize=1024)
def _values(counts: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Every way to give the kinds values that make all things worth `WORTH`."""
    found: list[tuple[int, ...]] = [()]
    for _ in counts:
        found = [(*before, value) for before in found for value in range(WORTH + 1)]
    return [each for each in found if sum(number * value for number, value in zip(counts, each, strict=True)) == WORTH]


def _read(text: str) -> tuple[int, ...] | str:
    """An offer, `accept`, or nothing that can be understood."""
    plain = text.strip().lower()
    if plain in _ACCEPT:
        return "accept"
    if not re.fullmatch(r"[0-9]( ?[0-9]){0,2}", plain):
        return ""
    numbers = [int(number) for number in plain if number != " "]
    return (*numbers, *[0] * (len(KINDS) - len(numbers)))


def _listed(things: tuple[int, ...]) -> str:
    return ", ".join(f"{number} {kind}" for number, kind in zip(things, KINDS, strict=True))


def _short(counts: tuple[int, ...], values: tuple[int, ...]) -> str:
    return "".join(map(str, counts)) + ":" + ",".join(map(str, values)) + "\n"


def _other(agent: str) -> str:
    return AGENTS[1 - AGENTS.index(agent)]
