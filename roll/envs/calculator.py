"""The smallest environment with tools: an arithmetic question and a calculator."""

from __future__ import annotations

import random
from dataclasses import dataclass

from roll.data.tools import ParsedResponse, Tool, ToolCall, parse_response
from roll.envs.base import StepResult
from roll.envs.inputs import check_number
from roll.envs.turn_recorder import TurnRecorder
from roll.types import Message, Task

_NUMBERS = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
}
_LARGEST = 10**12
"""Larger operands are rejected."""


@dataclass(eq=False)
class CalculatorEnv:
    """Asks for (a + b) x c and offers tools that add and multiply; a response without a call is the answer.

    The reward is 1 for the right number within `max_turns` responses. A response with a malformed call gets the reason
    and costs a turn and `format_penalty`.
    """

    tools = (Tool("add", "Gives a + b.", _NUMBERS), Tool("multiply", "Gives a x b.", _NUMBERS))

    task: Task
    most: int = 99
    """Largest value of a, b and c."""
    max_turns: int = 4
    format_penalty: float = 0.0

    def __post_init__(self) -> None:
        check_number("calculator: most", self.most, 1, 10**6, whole=True)
        draws = random.Random(self.task.seed)
        self._a, self._b, self._c = (draws.randint(1, self.most) for _ in range(3))
        self._recorder = TurnRecorder("calculator", self.max_turns, self.format_penalty)
        self._results: tuple[int | str, ...] = ()

    async def start(self) -> tuple[Message, ...]:
        question = f"What is ({self._a} + {self._b}) x {self._c}? Use the tools; then answer with the number alone."
        return (Message("user", question),)

    async def step(self, response: str) -> StepResult:
        return await self.call(parse_response(response, self.tools))

    async def call(self, response: ParsedResponse) -> StepResult:
        self._recorder.check_open()
        results = tuple(_result(call) for call in response.calls)
        answered = not response.calls and response.fault is None
        right = response.text.strip() == str((self._a + self._b) * self._c)
        effective = answered or results != self._results
        self._results = results
        texts = [str(result) for result in results] if response.fault is None else [f"error: {response.why}"]
        return self._recorder.record(
            [Message("tool", text) for text in texts],
            f"{results} after {self._recorder.num_turns + 1}",
            valid=response.fault is None,
            effective=effective,
            reward=float(right) if answered else None,
        )

    async def close(self) -> None:
        self._recorder.done = True


def _result(call: ToolCall) -> int | str:
    a, b = call.arguments["a"], call.arguments["b"]
    if max(abs(a), abs(b)) > _LARGEST:
        return "too large"
    return a + b if call.name == "add" else a * b
