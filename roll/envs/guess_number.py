"""Guess the number: the smallest environment in which a later reply depends on an earlier answer."""

from __future__ import annotations

import random
import re

from roll.envs.actions import Tally
from roll.envs.base import Reply
from roll.errors import ConfigError
from roll.types import Message, Task


class GuessNumber:
    """Thinks of a number from `low` to `high`; says `higher`, `lower` or `right` to each guess.

    The reward is 1 for the right number within `max_turns` replies. A reply that is not a number of the range costs a
    turn and is answered with the question again; a guess was effective if it was right or left less to be guessed. Its
    state is what the secret may still be, and after how many turns. Everything it says is short and within the default
    alphabet of a small model.
    """

    def __init__(self, task: Task, *, low: int = 1, high: int = 9, max_turns: int = 4) -> None:
        if not 0 <= low < high or max_turns < 1:
            raise ConfigError(
                f"guess_number: needs 0 <= low < high and max_turns >= 1 (got low {low}, high {high}, "
                f"max_turns {max_turns}); change its arguments"
            )
        self._question = f"{low}-{high}?"
        self._range = range(low, high + 1)
        self._max_turns = max_turns
        self._secret = random.Random(task.seed).choice(self._range)
        self._least, self._most = low, high  # what the secret may still be
        self._tally = Tally()
        self._done = False

    async def start(self) -> tuple[Message, ...]:
        return (Message("user", self._question),)

    async def step(self, reply: str) -> Reply:
        assert not self._done, "guess_number: stepped after done; an environment is single-use"
        guess = self._guess(reply)
        right = guess == self._secret
        before = self._least, self._most
        answer = self._answer(guess)
        self._tally.add(valid=guess is not None, effective=right or before != (self._least, self._most))
        self._done = right or self._tally.num_turns == self._max_turns
        return Reply(
            messages=(Message("user", answer),),
            reward=float(right),
            done=self._done,
            state=f"{self._least}-{self._most} after {self._tally.num_turns}",
            metrics=self._tally.metrics(success=right),
        )

    async def close(self) -> None:
        self._done = True

    def _guess(self, reply: str) -> int | None:
        text = reply.strip()
        number = int(text) if re.fullmatch(r"[0-9]{1,9}", text) else None
        return number if number in self._range else None

    def _answer(self, guess: int | None) -> str:
        if guess is None:
            return self._question
        if guess == self._secret:
            return "right"
        if guess < self._secret:
            self._least = max(self._least, guess + 1)
            return "higher"
        self._most = min(self._most, guess - 1)
        return "lower"
