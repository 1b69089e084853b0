"""What several attempts at one task say together: the answer that most of them give, and how often one is right."""

from __future__ import annotations

import importlib
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from roll.errors import RewardFailed, blame
from roll.registry import REWARDS
from roll.types import Call

AnswerOf = Callable[[str], Any]
"""What a reply answers, as its reward reads it; None where it answers nothing."""


def pass_at(num_right: int, num_attempts: int, k: int) -> float:
    """How likely one of `k` attempts is right, from more of them: without bias, whatever their number."""
    assert 0 <= num_right <= num_attempts and 1 <= k <= num_attempts, "k attempts cannot be drawn from fewer"
    return 1.0 - math.comb(num_attempts - num_right, k) / math.comb(num_attempts, k)


def majority(answers: Sequence[str | None]) -> int | None:
    """Where the answer that most give stands first; of equally many the first. None where nobody answers."""
    votes = Counter(answer for answer in answers if answer is not None)
    return answers.index(votes.most_common(1)[0][0]) if votes else None


def answer_of(reward: Call | None) -> Callable[[str], str | None]:
    """Reads what a reply answers: by `answer_of(reply)` in the reward's module, else the whole reply without spaces.

    Of several rewards the first whose module has one reads it. Raises `RewardFailed` where that raises.
    """
    place = "answer_of" if reward is None else f"reward {reward.name!r}, answer_of"
    readers = [reader for name in _names(reward) if (reader := _reader(name)) is not None]
    if not readers:
        return lambda reply: reply.strip() or None

    def read(reply: str) -> str | None:
        with blame(RewardFailed, place):
            found = readers[0](reply)
        return None if found is None or found == "" else str(found)

    return read


def _names(reward: Call | None) -> list[str]:
    if reward is None:
        return []
    several = cast(Sequence[Mapping[str, Any]], reward.arguments.get("rewards", ()))
    return [str(each["kind"]) for each in several] or [reward.name]


def _reader(name: str) -> AnswerOf | None:
    module, _ = REWARDS.locate(name)
    return getattr(importlib.import_module(module), "answer_of", None)
