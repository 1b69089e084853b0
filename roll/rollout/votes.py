"""Statistics over several attempts at one task: the majority answer, and the chance that one is right."""

from __future__ import annotations

import importlib
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from roll.errors import RewardFailed, blame
from roll.registry import REWARDS
from roll.types import Spec

AnswerOf = Callable[[str], Any]
"""Extracts the answer of a response as its reward does; None if there is none."""


def pass_at(num_right: int, num_attempts: int, k: int) -> float:
    """Unbiased estimate of the chance that one of `k` attempts is right, from `num_attempts` of them."""
    assert 0 <= num_right <= num_attempts and 1 <= k <= num_attempts, "k attempts cannot be drawn from fewer"
    return 1.0 - math.comb(num_attempts - num_right, k) / math.comb(num_attempts, k)


def majority(answers: Sequence[str | None]) -> int | None:
    """Index of the first attempt with the most frequent answer; None if no attempt has an answer."""
    votes = Counter(answer for answer in answers if answer is not None)
    return answers.index(votes.most_common(1)[0][0]) if votes else None


def answer_of(reward: Spec | None) -> Callable[[str], str | None]:
    """Extracts answers by `answer_of(response)` of the reward's module; without one, the stripped response.

    Of several rewards, the first whose module has this function is used. Raises `RewardFailed` if the function raises.
    """
    where = "answer_of" if reward is None else f"reward {reward.name!r}, answer_of"
    readers = [reader for name in _names(reward) if (reader := _reader(name)) is not None]
    if not readers:
        return lambda response: response.strip() or None

    def read(response: str) -> str | None:
        with blame(RewardFailed, where):
            answer = readers[0](response)
        return None if answer is None or answer == "" else str(answer)

    return read


def _names(reward: Spec | None) -> list[str]:
    if reward is None:
        return []
    several = cast(Sequence[Mapping[str, Any]], reward.kwargs.get("rewards", ()))
    return [str(each["kind"]) for each in several] or [reward.name]


def _reader(name: str) -> AnswerOf | None:
    module, _ = REWARDS.locate(name)
    return getattr(importlib.import_module(module), "answer_of", None)
