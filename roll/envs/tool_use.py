"""Multi-turn tool use: the policy calls tools as often as it likes; a response without a call is its answer.

| response | messages in return |
|---|---|
| calls tools | one result per call, in order |
| malformed call, unknown tool or wrong arguments | the reason |
| calls a tool that raises, hangs or has died | the error |
| calls none | none: it is the answer and ends the attempt |

None of these stops the run. The source's `reward`, or `exact`, scores the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from roll.data.tools import ParsedResponse, parse_response
from roll.envs.actions import ActionCounts
from roll.envs.arguments import check_number
from roll.envs.base import StepResult
from roll.envs.turn_recorder import digest, without_thinking
from roll.errors import ConfigError
from roll.tools.base import ToolResult
from roll.tools.toolkit import Toolkit
from roll.tools.usage import ToolUsage
from roll.types import Message, Task


@dataclass(eq=False)
class ToolUse:
    """Opens with the task's messages, runs calls, and ends with the first response without a call."""

    task: Task
    tools: Sequence[Any]
    """Names of tools as in `roll.tools.toolkit`; replaced by the tools themselves."""
    exact: bool = False
    """Reward 1 if the response after any thinking equals the task's answer, stripped; do not combine with `reward`."""
    max_turns: int = 8
    timeout_s: float = 30.0
    """Per call."""
    most_chars: int = 4000
    """Most characters of a result."""
    format_penalty: float = 0.0
    """Subtracted per malformed call."""

    def __post_init__(self) -> None:
        check_number("tool_use: max_turns", self.max_turns, 1, whole=True)
        check_number("tool_use: timeout_s", self.timeout_s, 0.001)
        check_number("tool_use: most_chars", self.most_chars, 2, whole=True)
        check_number("tool_use: format_penalty", self.format_penalty, 0)
        if not isinstance(cast(Any, self.tools), list | tuple) or not self.tools:
            raise ConfigError(f"tool_use: 'tools' must be a non-empty list (got {self.tools!r}); name tools")
        if not self.task.messages:
            raise ConfigError(f"task {self.task.id!r}: no 'prompt' or 'messages'; tool_use opens with them")
        if self.exact and self.task.answer is None:
            raise ConfigError(f"task {self.task.id!r}: no 'answer' to compare with; give it one, or drop `exact`")
        self._toolkit = Toolkit(self.tools, timeout_s=self.timeout_s, most_chars=self.most_chars)
        self.tools = self._toolkit.tools
        self._counts, self._usage = ActionCounts(), ToolUsage()
        self._state, self._done = "", False

    async def start(self) -> tuple[Message, ...]:
        await self._toolkit.start()
        self.tools = self._toolkit.tools  # servers list theirs only after the start
        return self.task.messages

    async def step(self, response: str) -> StepResult:
        return await self.call(parse_response(response, self.tools))

    async def call(self, response: ParsedResponse) -> StepResult:
        """The result for one response with parsed calls."""
        assert not self._done, "tool_use: stepped after done; an environment is single-use"
        results = [await self._toolkit.run(call) for call in response.calls]
        answered = not response.calls and response.fault is None
        self._count(response, results)
        self._done = answered or self._counts.num_turns == self.max_turns
        right = self.exact and answered and self._is_right(response.text)
        texts = [f"error: {response.why}"] if response.fault is not None else [result.text for result in results]
        self._state = digest(self._state, *map(str, response.calls), *texts)
        metrics = self._counts.metrics(success=right)
        if not self.exact:
            del metrics["success"]  # the reward decides
        return StepResult(
            messages=tuple(Message("tool", text) for text in texts),
            reward=float(right) - (0.0 if response.fault is None else self.format_penalty),
            done=self._done,
            state=self._state,
            metrics={**metrics, **self._usage.metrics()},
        )

    async def close(self) -> None:
        self._done = True
        await self._toolkit.close()

    def _count(self, response: ParsedResponse, results: Sequence[ToolResult]) -> None:
        faults = [result.fault for result in results if result.fault is not None]
        worked = response.fault is None and len(faults) < max(1, len(results))
        self._counts.add(valid=response.fault is None, effective=worked)
        self._usage.count(len(results), faults if response.fault is None else [response.fault])

    def _is_right(self, text: str) -> bool:
        answer: object = self.task.answer
        aliases = cast(list[object], answer) if isinstance(answer, list) else [answer]
        return without_thinking(text) in {str(alias).strip() for alias in aliases}
