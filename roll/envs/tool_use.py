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
from roll.envs.base import StepResult
from roll.envs.inputs import check_number
from roll.envs.turn_recorder import TurnRecorder, digest, without_thinking
from roll.errors import ConfigError
from roll.tools.base import ToolUsage
from roll.tools.toolkit import Toolkit
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
        self._usage = ToolUsage()
        self._recorder = TurnRecorder("tool_use", self.max_turns, self.format_penalty, usage=self._usage)
        check_number("tool_use: timeout_s", self.timeout_s, 0.001)
        check_number("tool_use: most_chars", self.most_chars, 2, whole=True)
        if not isinstance(cast(Any, self.tools), list | tuple) or not self.tools:
            raise ConfigError(f"tool_use: 'tools' must be a non-empty list (got {self.tools!r}); name tools")
        if not self.task.messages:
            raise ConfigError(f"task {self.task.id!r}: no 'prompt' or 'messages'; tool_use opens with them")
        if self.exact and self.task.answer is None:
            raise ConfigError(f"task {self.task.id!r}: no 'answer' to compare with; give it one, or drop `exact`")
        self._toolkit = Toolkit(self.tools, timeout_s=self.timeout_s, most_chars=self.most_chars)
        self.tools = self._toolkit.tools
        self._state = ""

    async def start(self) -> tuple[Message, ...]:
        await self._toolkit.start()
        self.tools = self._toolkit.tools  # servers list theirs only after the start
        return self.task.messages

    async def step(self, response: str) -> StepResult:
        return await self.call(parse_response(response, self.tools))

    async def call(self, response: ParsedResponse) -> StepResult:
        self._recorder.check_open()
        results = [await self._toolkit.run(call) for call in response.calls]
        valid = response.fault is None
        texts = [result.text for result in results] if valid else [f"error: {response.why}"]
        faults = [result.fault for result in results if result.fault is not None]
        self._usage.count(len(results), faults if response.fault is None else [response.fault])
        self._state = digest(self._state, *map(str, response.calls), *texts)
        result = self._recorder.record(
            [Message("tool", text) for text in texts],
            self._state,
            valid=valid,
            effective=valid and len(faults) < max(1, len(results)),
            reward=float(self.exact and self._is_right(response.text)) if valid and not response.calls else None,
        )
        if not self.exact:
            del result.metrics["success"]  # the reward decides
        return result

    async def close(self) -> None:
        self._recorder.done = True
        await self._toolkit.close()

    def _is_right(self, text: str) -> bool:
        answer: object = self.task.answer
        aliases = cast(list[object], answer) if isinstance(answer, list) else [answer]
        return without_thinking(text) in {str(alias).strip() for alias in aliases}
