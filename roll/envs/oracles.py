"""Agents that know the answer: made with the task, to try an environment and its rows with.

    roll rollout examples/sql.yaml --agent roll.envs.oracles:Sql

Each plays what its row says is right, by calls in the form `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from roll.envs.sql.mysql import in_sqlite
from roll.errors import ConfigError
from roll.types import Message, Task


def called(name: str, **arguments: Any) -> str:
    """A call, as a policy writes it."""
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


class _Oracle:
    """Says its replies one after the other, whatever it hears."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._replies = self._planned()

    def __call__(self, messages: Sequence[Message]) -> str:
        return next(self._replies)

    def _planned(self) -> Iterator[str]:
        raise NotImplementedError

    def _field(self, name: str) -> Any:
        if name not in self._task.metadata:
            raise ConfigError(f"oracle: task {self._task.id!r} has no {name!r}; add it to its row")
        return self._task.metadata[name]


class Repair(_Oracle):
    """Puts the row's `reference` in place of the program, tries it, and hands it in."""

    def _planned(self) -> Iterator[str]:
        path = f"{self._field('entry_point')}.py"
        yield called("read_file", path=path)
        yield called("edit_file", path=path, old=self._field("buggy_code"), new=self._field("reference"))
        yield called("run_tests")
        yield called("submit")


class Sql(_Oracle):
    """Answers what the row's `answer` says, or executes it where it is a statement."""

    def _planned(self) -> Iterator[str]:
        answer: list[Any] = self._task.answer
        if self._field("check") == "state":
            yield called("execute_sql", query=in_sqlite(answer[0]))
            answer = []
        yield called("answer", values=answer)


class Retail(_Oracle):
    """Does the row's `actions`, then says its `outputs`."""

    def _planned(self) -> Iterator[str]:
        outputs: list[str] = self._task.metadata.get("outputs", [])
        actions: list[Any] = self._field("actions")
        handed_over = [action for action in actions if action["name"] == "transfer_to_human_agents"]
        for action in actions:
            if action not in handed_over:
                yield called(action["name"], **action["kwargs"])
        if handed_over and outputs:
            yield f"{' '.join(outputs)}. Is there anything else?"
        for action in handed_over:
            yield called(action["name"], **action["kwargs"])
        yield f"Done. {' '.join(outputs)}"
