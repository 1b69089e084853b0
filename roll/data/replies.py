"""Files of replies: one JSON object per line, with the fields of a task and the replies to it."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from roll.data.fields import look_up
from roll.errors import ConfigError
from roll.types import Message, Task

_FIELDS = frozenset({"id", "domain", "prompt", "messages", "answer", "seed", "reply", "replies"})
_MOST_FAULTS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredTask:
    """A task and the replies to it."""

    line: int
    task: Task
    replies: tuple[str, ...]


def read_replies(file: Path, fields: Mapping[str, str]) -> list[AnsweredTask]:
    """All lines of a `.jsonl` or `.jsonl.gz` file; raises all faults at once.

    A line has `reply` (text) or `replies` (a list of texts), and the fields that the reward reads, such as `prompt` or
    `messages`, `answer`, `id` and `seed`. `fields` maps these names to other names or dotted paths in the file (numbers
    are indices of lists).
    """
    rows: list[AnsweredTask] = []
    faults: list[str] = []
    for line, text in enumerate(_text(file).split("\n"), start=1):
        if not text.strip():
            continue
        try:
            rows.append(_parse(text, fields, file, line))
        except ValueError as fault:
            faults.append(f"{file}:{line}: {fault}")
    if faults:
        rest = len(faults) - _MOST_FAULTS
        more = [f"{file}: {rest} more faults; fix these first"] if rest > 0 else []
        raise ConfigError("\n".join([*faults[:_MOST_FAULTS], *more]))
    if not rows:
        raise ConfigError(f"{file}: no replies in it; put one JSON object on each line")
    return rows


def _text(file: Path) -> str:
    try:
        body = file.read_bytes()
        return (gzip.decompress(body) if file.suffix == ".gz" else body).decode("utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"{file}: no such file; check the path (it is relative to the current directory)") from None
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        what = f"cannot be read ({error}); it must be UTF-8 text, or gzip if it ends in .gz"
        raise ConfigError(f"{file}: {what}") from None


def _parse(text: str, fields: Mapping[str, str], file: Path, line: int) -> AnsweredTask:
    """The task and replies of one line; ValueError with the fault and its remedy if it is invalid."""
    try:
        value: Any = json.loads(text)
    except json.JSONDecodeError as error:
        what = f"broken JSON at column {error.colno} ({error.msg}); put one whole object on each line"
        raise ValueError(what) from None
    if not isinstance(value, dict):
        raise ValueError(f"not a JSON object (got {type(value).__name__}); put one object on each line")
    entries = cast(dict[str, Any], value)
    mapped = {path for path in fields.values() if path in entries}
    row = {name: entry for name, entry in entries.items() if name not in mapped}
    row |= {name: _look_up(entries, path) for name, path in fields.items()}
    seed = row.get("seed", line)
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise ValueError(f"'seed' is not a whole number (got {seed!r}); write one, 0 or more")
    task = Task(
        id=str(row.get("id", line)),
        domain=str(row.get("domain", file.name.removesuffix(".gz").removesuffix(".jsonl"))),
        messages=_messages(row),
        answer=row.get("answer"),
        metadata={name: entry for name, entry in row.items() if name not in _FIELDS},
        seed=seed,
    )
    return AnsweredTask(line=line, task=task, replies=_replies(row))


def _look_up(row: dict[str, Any], path: str) -> Any:
    try:
        return look_up(row, path)
    except ValueError:
        raise ValueError(f"no field {path!r} (has {', '.join(row) or 'none'}); correct --field") from None


def _replies(row: dict[str, Any]) -> tuple[str, ...]:
    reply, replies = row.get("reply"), row.get("replies")
    if (reply is None) == (replies is None):
        wrong = "neither 'reply' nor 'replies'" if reply is None else "both 'reply' and 'replies'"
        raise ValueError(f"{wrong} (has {', '.join(row) or 'none'}); give one, or name its field: --field reply=...")
    several = cast(list[object], replies) if isinstance(replies, list) else [reply]
    texts = [each for each in several if isinstance(each, str)]
    if not several or len(texts) < len(several) or (replies is not None and not isinstance(replies, list)):
        raise ValueError("'reply' must be text and 'replies' a list of texts; correct it")
    return tuple(texts)


def _messages(row: dict[str, Any]) -> tuple[Message, ...]:
    prompt, messages = row.get("prompt"), row.get("messages")
    if prompt is not None and messages is not None:
        raise ValueError("both 'prompt' and 'messages'; keep one of them")
    if isinstance(prompt, str):
        return (Message("user", prompt),)
    entries = cast(list[Any], messages) if isinstance(messages, list) else []
    if prompt is not None or (messages is not None and not isinstance(messages, list)):
        raise ValueError("'prompt' must be text and 'messages' a list; correct it")
    return tuple(_message(entry) for entry in entries)


def _message(entry: Any) -> Message:
    fields = cast(dict[str, Any], entry) if isinstance(entry, dict) else {}
    role, content = fields.get("role"), fields.get("content")
    if not isinstance(role, str) or not isinstance(content, str):
        raise ValueError(f"a message needs 'role' and 'content' as text (got {entry!r}); write both")
    return Message(role, content)
