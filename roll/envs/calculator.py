"""A calculator: the smallest environment with tools."""

from __future__ import annotations

import random
from dataclasses import dataclass

from roll.data.tools import Spoken, Tool, ToolCall, read
from roll.envs.actions import Tally
from roll.envs.arguments import check_number
from roll.envs.base import Reply
from roll.types import Message, Task

_NUMBERS = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
}
_LARGEST = 10**12
"""Numbers beyond this are not computed with."""


@dataclass(eq=False)
class Calculator:
    """Asks for (a + b) x c, and has tools that add and multiply; a reply that calls none is the answer.

    The reward is 1 for the right number within `max_turns` replies. A reply whose call cannot be read is told why, and
    costs a turn and `format_penalty`.
    """

    tools = (Tool("add", "Gives a + b.", _NUMBERS), Tool("multiply", "Gives a x b.", _NUMBERS))

    task: Task
    most: int = 99
    """Of a, b and c."""
    max_turns: int = 4
    format_penalty: float = 0.0

    def __post_init__(self) -> None:
        check_number("calculator: most", self.most, 1, 10**6, whole=True)
        check_number("calculator: max_turns", self.max_turns, 1, whole=True)
        check_number("calculator: format_penalty", self.format_penalty, 0)
        draws = random.Random(self.task.seed)
        self._a, self._b, self._c = (draws.randint(1, self.most) for _ in range(3))
        self._tally = Tally()
        self._results: tuple[int | str, ...] = ()
        self._done = False

    async def start(self) -> tuple[Message, ...]:
        asked = f"What is ({self._a} + {self._b}) x {self._c}? Use the tools; then answer with the number alone."
        return (Message("user", asked),)

    async def step(self, reply: str) -> Reply:
        return await self.call(read(reply, self.tools))

    async def call(self, said: Spoken) -> Reply:
        """The answer to one reply whose calls were read."""
        assert not self._done, "calculator: stepped after done; an environment is single-use"
        results = tuple(_result(call) for call in said.calls)
        answered = not said.calls and said.fault is None
        right = answered and said.text.strip() == str((self._a + self._b) * self._c)
        self._tally.add(valid=said.fault is None, effective=answered or results != self._results)
        self._results = results
        self._done = answered or self._tally.num_turns == self.max_turns
        words = [str(result) for result in results] if said.fault is None else [f"error: {said.why}"]
        return Reply(
            messages=tuple(Message("tool", word) for word in words),
            reward=float(right) - (0.0 if said.fault is None else self.format_penalty),
            done=self._done,
            state=f"{results} after {self._tally.num_turns}",
            metrics=self._tally.metrics(success=right),
        )

    async def close(self) -> None:
        self._done = True


def _result(call: ToolCall) -> int | str:
    a, b = call.arguments["a"], call.arguments["b"]
    if max(abs(a), abs(b)) > _LARGEST:
        return "too large"
    return a + b if call.name == "add" else a * b
