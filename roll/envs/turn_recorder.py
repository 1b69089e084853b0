"""Builds the `StepResult` of each turn: counts, format penalty, end of the attempt."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from roll.data.tools import ParsedResponse
from roll.envs.actions import ActionCounts
from roll.envs.base import StepResult
from roll.envs.inputs import check_number
from roll.tools.base import ToolResult, ToolUsage
from roll.types import Message

NO_CALL = "Nothing was called. Call a tool."


class TurnRecorder:
    """The turns of one attempt. An invalid response costs a turn and `format_penalty`; turn `max_turns` is the last."""

    __slots__ = ("_counts", "_format_penalty", "_max_turns", "_name", "_usage", "done")

    def __init__(
        self, name: str, max_turns: int, format_penalty: float = 0.0, *, usage: ToolUsage | None = None
    ) -> None:
        """With `usage`, its metrics are part of every result."""
        check_number(f"{name}: max_turns", max_turns, 1, whole=True)
        check_number(f"{name}: format_penalty", format_penalty, 0)
        self._name, self._max_turns, self._format_penalty = name, max_turns, format_penalty
        self._counts, self._usage = ActionCounts(), usage
        self.done = False

    @property
    def num_turns(self) -> int:
        return self._counts.num_turns

    def check_open(self) -> None:
        assert not self.done, f"{self._name}: stepped after done; an environment is single-use"

    def record(
        self, messages: Sequence[Message], state: str, *, valid: bool, effective: bool, reward: float | None = None
    ) -> StepResult:
        """The result of one turn. A `reward` ends the attempt; a reward of 1 counts as success."""
        self._counts.add(valid=valid, effective=effective)
        self.done = reward is not None or self.num_turns == self._max_turns
        metrics = self._counts.metrics(success=reward == 1)
        return StepResult(
            messages=tuple(messages),
            reward=(reward or 0.0) - (0.0 if valid else self._format_penalty),
            done=self.done,
            state=state,
            metrics=metrics if self._usage is None else metrics | self._usage.metrics(),
        )


class ToolTurnRecorder(TurnRecorder):
    """The turns of one attempt with tools. The state digest covers the environment's state and the messages."""

    def __init__(self, name: str, max_turns: int, format_penalty: float) -> None:
        self.usage = ToolUsage()
        super().__init__(name, max_turns, format_penalty, usage=self.usage)

    def reject(self, response: ParsedResponse, state: str, no_call: str = NO_CALL) -> StepResult:
        """The result of a response with a malformed call, or with no call, which is answered with `no_call`."""
        if response.fault is None:
            message = Message("user", no_call)
        else:
            self.usage.count(0, [response.fault])
            message = Message("tool", f"error: {response.why}")
        return self.record([message], state, valid=False, effective=False)

    def answer_calls(self, results: Sequence[ToolResult], state: str, reward: float | None = None) -> StepResult:
        """The result of a response with calls; it is effective if none of them failed."""
        faults = [result.fault for result in results if result.fault is not None]
        self.usage.count(len(results), faults)
        messages = [Message("tool", result.text) for result in results]
        return self.record(messages, state, valid=True, effective=not faults, reward=reward)

    def answer_text(self, text: str, state: str, reward: float | None = None) -> StepResult:
        """The result of a response addressed to a person, who answers with `text`."""
        return self.record([Message("user", text)], state, valid=True, effective=True, reward=reward)

    def record(
        self, messages: Sequence[Message], state: str, *, valid: bool, effective: bool, reward: float | None = None
    ) -> StepResult:
        state = digest(state, *(message.content for message in messages))
        return super().record(messages, state, valid=valid, effective=effective, reward=reward)


def digest(*texts: str) -> str:
    """A short digest of the texts, the same in every process."""
    sha = hashlib.sha256()
    for text in texts:
        raw = text.encode("utf-8", "surrogatepass")
        sha.update(b"%d:" % len(raw) + raw)
    return sha.hexdigest()[:32]


def without_thinking(response: str) -> str:
    """The text after `</think>`; the whole response if it has no thinking, empty if the thinking never ends."""
    _, closed, text = response.rpartition("</think>")
    return text.strip() if closed or "<think>" not in response else ""
