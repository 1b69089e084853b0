"""Tools on the way to an answer: the policy calls them as often as it likes, and a reply without a call is its answer.

| what a reply does | what it hears |
|---|---|
| calls tools | a message for each call with what came of it, in their order |
| calls one that does not exist, or with arguments that do not fit, or writes no call at all where it means to | why |
| calls one that raises, hangs or has died | that it did |
| calls none | nothing: it is the answer, and the attempt is over |

None of these ends the run. Whether the answer is right is for the source's `reward` to say, or for `exact`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from roll.data.tools import Spoken, read
from roll.envs.actions import Tally
from roll.envs.arguments import check_number
from roll.envs.base import Reply
from roll.envs.calls import aloud, digest
from roll.errors import ConfigError
from roll.tools.base import Answer
from roll.tools.kit import Kit
from roll.tools.usage import Usage
from roll.types import Message, Task


@dataclass(eq=False)
class ToolUse:
    """Opens with the task's messages, runs what is called, and ends with the first reply that calls nothing."""

    task: Task
    tools: Sequence[Any]
    """Names of tools, as `roll.tools.kit` takes them; from then on the tools themselves."""
    exact: bool = False
    """The reward is 1 for an answer that is the task's, after any thinking and spaces aside; not beside a `reward`."""
    max_turns: int = 8
    timeout_s: float = 30.0
    """For one call."""
    most_chars: int = 4000
    """What is shown of a result."""
    format_penalty: float = 0.0
    """Taken off for each reply that means to call a tool and cannot be read."""

    def __post_init__(self) -> None:
        check_number("tool_use: max_turns", self.max_turns, 1, whole=True)
        check_number("tool_use: timeout_s", self.timeout_s, 0.001)
        check_number("tool_use: most_chars", self.most_chars, 2, whole=True)
        check_number("tool_use: format_penalty", self.format_penalty, 0)
        if not isinstance(cast(Any, self.tools), list | tuple) or not self.tools:
            raise ConfigError(f"tool_use: 'tools' is not a list with some in it (got {self.tools!r}); name tools")
        if not self.task.messages:
            raise ConfigError(f"task {self.task.id!r}: no 'prompt' or 'messages'; tool_use opens with them")
        if self.exact and self.task.answer is None:
            raise ConfigError(f"task {self.task.id!r}: no 'answer' to compare with; give it one, or drop `exact`")
        self._kit = Kit(self.tools, timeout_s=self.timeout_s, most_chars=self.most_chars)
        self.tools = self._kit.tools
        self._tally, self._usage = Tally(), Usage()
        self._state, self._done = "", False

    async def start(self) -> tuple[Message, ...]:
        await self._kit.start()
        self.tools = self._kit.tools  # servers say theirs only now
        return self.task.messages

    async def step(self, reply: str) -> Reply:
        return await self.call(read(reply, self.tools))

    async def call(self, said: Spoken) -> Reply:
        """What came of one reply whose calls were read."""
        assert not self._done, "tool_use: stepped after done; an environment is single-use"
        answers = [await self._kit.answer(call) for call in said.calls]
        answered = not said.calls and said.fault is None
        self._count(said, answers)
        self._done = answered or self._tally.num_turns == self.max_turns
        right = self.exact and answered and self._right(said.text)
        told = [f"error: {said.why}"] if said.fault is not None else [answer.text for answer in answers]
        self._state = digest(self._state, *map(str, said.calls), *told)
        counted = self._tally.metrics(success=right)
        if not self.exact:
            del counted["success"]  # the reward's to say
        return Reply(
            messages=tuple(Message("tool", text) for text in told),
            reward=float(right) - (0.0 if said.fault is None else self.format_penalty),
            done=self._done,
            state=self._state,
            metrics={**counted, **self._usage.metrics()},
        )

    async def close(self) -> None:
        self._done = True
        await self._kit.close()

    def _count(self, said: Spoken, answers: Sequence[Answer]) -> None:
        faults = [answer.fault for answer in answers if answer.fault is not None]
        worked = said.fault is None and len(faults) < max(1, len(answers))
        self._tally.add(valid=said.fault is None, effective=worked)
        self._usage.count(len(answers), faults if said.fault is None else [said.fault])

    def _right(self, text: str) -> bool:
        answer: object = self.task.answer
        aliases = cast(list[object], answer) if isinstance(answer, list) else [answer]
        return aloud(text) in {str(alias).strip() for alias in aliases}
