"""Files of responses: one JSON object per line, with the fields of a task and the responses to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from roll.data.fields import look_up, parse_object, parse_seed
from roll.data.messages import parse_message
from roll.data.tasks import domain_of, parse_lines
from roll.types import Message, Task

_LISTS = ("responses", "replies")
_TEXTS = ("response", "reply")
_FIELDS = frozenset({"id", "domain", "prompt", "messages", "answer", "seed", *_TEXTS, *_LISTS})


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredTask:
    """A task and the responses to it."""

    line: int
    task: Task
    replies: tuple[str, ...]


def read_replies(file: Path, fields: Mapping[str, str]) -> list[AnsweredTask]:
    """All lines of a `.jsonl` or `.jsonl.gz` file; raises all faults at once.

    A line has `response` (text) or `responses` (a list of texts), and the fields that the reward reads, such as
    `prompt` or `messages`, `answer`, `id` and `seed`. `reply` and `replies` are other names of the first two. `fields`
    maps these names to other names or dotted paths in the file (numbers are indices of lists).
    """
    domain = domain_of(file)
    return parse_lines(
        file,
        lambda line, value: _parse(line, parse_object(value), fields, domain),
        empty="no responses in it; put one JSON object on each line",
    )


def _parse(line: int, entries: dict[str, Any], fields: Mapping[str, str], domain: str) -> AnsweredTask:
    """The task and responses of one line; ValueError with the fault and its remedy if it is invalid."""
    mapped = {path for path in fields.values() if path in entries}
    row = {name: entry for name, entry in entries.items() if name not in mapped}
    row |= {name: _look_up(entries, path) for name, path in fields.items()}
    task = Task(
        id=str(row.get("id", line)),
        domain=str(row.get("domain", domain)),
        messages=_messages(row),
        answer=row.get("answer"),
        metadata={name: entry for name, entry in row.items() if name not in _FIELDS},
        seed=parse_seed(row.get("seed", line)),
    )
    return AnsweredTask(line=line, task=task, replies=_replies(row))


def _look_up(row: dict[str, Any], path: str) -> Any:
    try:
        return look_up(row, path)
    except ValueError:
        raise ValueError(f"no field {path!r} (has {', '.join(row) or 'none'}); correct --field") from None


def _replies(row: dict[str, Any]) -> tuple[str, ...]:
    given = [name for name in (*_TEXTS, *_LISTS) if row.get(name) is not None]
    if len(given) != 1:
        wrong = f"both {given[0]!r} and {given[1]!r}" if given else "neither 'response' nor 'responses'"
        raise ValueError(f"{wrong} (has {', '.join(row) or 'none'}); give one, or name its field: --field response=...")
    name, value = given[0], row[given[0]]
    several = value if name in _LISTS else [value]
    if not (isinstance(several, list) and several and all(isinstance(each, str) for each in cast(list[Any], several))):
        raise ValueError(f"{name!r} must be {'a list of texts' if name in _LISTS else 'text'}; correct it")
    return tuple(cast(list[str], several))


def _messages(row: dict[str, Any]) -> tuple[Message, ...]:
    prompt, messages = row.get("prompt"), row.get("messages")
    if prompt is not None and messages is not None:
        raise ValueError("both 'prompt' and 'messages'; keep one of them")
    if isinstance(prompt, str):
        return (Message("user", prompt),)
    entries = cast(list[Any], messages) if isinstance(messages, list) else []
    if prompt is not None or (messages is not None and not isinstance(messages, list)):
        raise ValueError("'prompt' must be text and 'messages' a list; correct it")
    return tuple(parse_message(entry) for entry in entries)
