"""Agents that know the answer, for testing an environment and its rows. They are built with the task.

    roll rollout examples/sql.yaml --agent roll.envs.oracles:SqlOracle

Each plays the solution in its row, with calls in the format `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from roll.data.tools import ToolCall, format_call
from roll.envs.sql.answers import to_sqlite
from roll.errors import ConfigError
from roll.types import Message, Task


def tool_call(name: str, **arguments: Any) -> str:
    """A call as a policy writes it."""
    return format_call(ToolCall(name, arguments))


class _Oracle:
    """Gives its planned responses in order, regardless of the conversation."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._responses = self._plan()

    def __call__(self, messages: Sequence[Message]) -> str:
        return next(self._responses)

    def _plan(self) -> Iterator[str]:
        raise NotImplementedError

    def _field(self, name: str) -> Any:
        if name not in self._task.metadata:
            raise ConfigError(f"oracle: task {self._task.id!r} has no {name!r}; add it to its row")
        return self._task.metadata[name]


class RepairOracle(_Oracle):
    """Replaces the program by the row's `reference`, runs the tests, and submits."""

    def _plan(self) -> Iterator[str]:
        path = f"{self._field('entry_point')}.py"
        yield tool_call("read_file", path=path)
        yield tool_call("edit_file", path=path, old=self._field("buggy_code"), new=self._field("reference"))
        yield tool_call("run_tests")
        yield tool_call("submit")


class SqlOracle(_Oracle):
    """Answers with the row's `answer`, or executes it if it is a statement."""

    def _plan(self) -> Iterator[str]:
        answer: list[Any] = self._task.answer
        if self._field("check") == "state":
            yield tool_call("execute_sql", query=to_sqlite(answer[0]))
            answer = []
        yield tool_call("answer", values=answer)


class RetailOracle(_Oracle):
    """Performs the row's `actions`, then states its `outputs`."""

    def _plan(self) -> Iterator[str]:
        outputs: list[str] = self._task.metadata.get("outputs", [])
        actions: list[Any] = self._field("actions")
        handed_over = [action for action in actions if action["name"] == "transfer_to_human_agents"]
        for action in actions:
            if action not in handed_over:
                yield tool_call(action["name"], **action["kwargs"])
        if handed_over and outputs:
            yield f"{' '.join(outputs)}. Is there anything else?"
        for action in handed_over:
            yield tool_call(action["name"], **action["kwargs"])
        yield f"Done. {' '.join(outputs)}"
