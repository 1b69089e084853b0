"""Tasks with answers as rows for supervised learning: ids of prompts and responses, which alternate."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from roll.data.chat_rows import chat_row
from roll.data.tasks import Seeds
from roll.data.templates import Template
from roll.data.tools import parse_tools
from roll.errors import ConfigError
from roll.types import Message, Task

IdRow: TypeAlias = list[list[int]]
"""Ids of a prompt and of the response to it; several such pairs for a chat of which all turns are trained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerEncoder:
    """Encodes tasks with answers."""

    template: Template
    max_seq_len: int
    every_turn: bool
    """Train on all turns of the assistant in a chat, not only on the last one."""
    purpose: str
    """What the rows are for, in errors."""

    def row(self, task: Task) -> IdRow:
        """The chat of one task, or its prompt and answer; raises `ConfigError` if it has neither or is too long."""
        where = f"task {task.id!r}"
        row = self._pair(task, where) if task.reply is None else self._chat(task, task.reply, where)
        if (length := sum(map(len, row))) > self.max_seq_len:
            parts = " + ".join(str(len(part)) for part in row) if len(row) == 2 else str(length)
            raise ConfigError(f"{where}: {parts} tokens exceed rollout.max_seq_len {self.max_seq_len}; raise it")
        return row

    def _pair(self, task: Task, where: str) -> IdRow:
        if fault := answer_fault(task, self.purpose):
            raise ConfigError(fault)
        prompt = self.template.open(task.messages, where=where).tolist()
        return [prompt, self.template.answer(str(task.answer), where=where).tolist()]

    def _chat(self, task: Task, reply: Message, where: str) -> IdRow:
        tools = parse_tools(task.metadata.get("tools") or ())
        messages = (*task.messages, reply)
        return [*chat_row(self.template, messages, every=self.every_turn, where=where, tools=tools)]


def answer_fault(task: Task, purpose: str) -> str:
    """Why no row can be made from a task; empty if one can."""
    if task.reply is not None or isinstance(task.answer, str):
        return ""
    return f"task {task.id!r}: its answer is not text (got {task.answer!r}); {purpose} trains on text"


def seeds_fault(name: str, tasks: Sequence[Task]) -> str:
    """Why a source has no answers at all; empty if it may have some."""
    if not isinstance(tasks, Seeds):
        return ""
    return f"tasks: source {name!r}: its environment writes the tasks, which have no answers; set distill.tasks"


def digest_rows(rows: Iterable[IdRow]) -> str:
    """A hash of the ids of all rows, in order."""
    digest = hashlib.blake2b(digest_size=16)
    for row in rows:
        for part in row:
            digest.update(len(part).to_bytes(8) + np.array(part, np.int64).tobytes())
    return digest.hexdigest()
