"""Guess the number: the smallest environment in which a response depends on earlier feedback."""

from __future__ import annotations

import random
import re

from roll.envs.base import StepResult
from roll.envs.turn_recorder import TurnRecorder
from roll.errors import ConfigError
from roll.types import Message, Task


class GuessNumber:
    """Draws a number from `low` to `high`; says `higher`, `lower` or `right` to each guess.

    The reward is 1 for the right number within `max_turns` responses. A response that is no number in the range costs a
    turn and gets the question again; a guess is effective if it is right or narrows the range. The state is the
    remaining range and the number of turns. All messages are short and use the default alphabet of a small model.
    """

    def __init__(self, task: Task, *, low: int = 1, high: int = 9, max_turns: int = 4) -> None:
        if not 0 <= low < high:
            raise ConfigError(f"guess_number: needs 0 <= low < high (got low {low}, high {high}); change its arguments")
        self._question = f"{low}-{high}?"
        self._range = range(low, high + 1)
        self._secret = random.Random(task.seed).choice(self._range)
        self._least, self._most = low, high  # the remaining range
        self._recorder = TurnRecorder("guess_number", max_turns)

    async def start(self) -> tuple[Message, ...]:
        return (Message("user", self._question),)

    async def step(self, response: str) -> StepResult:
        self._recorder.check_open()
        text = response.strip()
        guess = int(text) if re.fullmatch(r"[0-9]{1,9}", text) and int(text) in self._range else None
        right = guess == self._secret
        before = self._least, self._most
        answer = self._answer(guess)
        return self._recorder.record(
            [Message("user", answer)],
            f"{self._least}-{self._most} after {self._recorder.num_turns + 1}",
            valid=guess is not None,
            effective=right or before != (self._least, self._most),
            reward=1.0 if right else None,
        )

    async def close(self) -> None:
        self._recorder.done = True

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
