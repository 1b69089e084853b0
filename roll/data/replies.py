"""Files of replies: one JSON object a line, with a task's fields and what was answered to it."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from roll.errors import ConfigError
from roll.types import Message, Task

_OWN = frozenset({"id", "domain", "prompt", "messages", "answer", "seed", "reply", "replies"})
_MOST_FAULTS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A task and what was answered to it."""

    line: int
    task: Task
    replies: tuple[str, ...]


def read_replies(file: Path, fields: Mapping[str, str]) -> list[Answered]:
    """Every line of a `.jsonl` or `.jsonl.gz` file; raises all its faults at once.

    A line has `reply` (text) or `replies` (a list of texts), and of `prompt` or `messages`, `answer`, `id`, `seed` and
    whatever else a reward reads those that it does read. `fields` says what the file calls them, where it calls them
    otherwise: a name or a dotted path (numbers count the entries of a list) by the name that rewards know.
    """
    found: list[Answered] = []
    faults: list[str] = []
    for line, text in enumerate(_text(file).split("\n"), start=1):
        if not text.strip():
            continue
        try:
            found.append(_answered(text, fields, file, line))
        except ValueError as fault:
            faults.append(f"{file}:{line}: {fault}")
    if faults:
        rest = len(faults) - _MOST_FAULTS
        more = [f"{file}: {rest} more faults; fix these first"] if rest > 0 else []
        raise ConfigError("\n".join([*faults[:_MOST_FAULTS], *more]))
    if not found:
        raise ConfigError(f"{file}: no replies in it; put one JSON object on each line")
    return found


def _text(file: Path) -> str:
    try:
        body = file.read_bytes()
        return (gzip.decompress(body) if file.suffix == ".gz" else body).decode("utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"{file}: no such file; check the path (it is relative to the current directory)") from None
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        what = f"cannot be read ({error}); it must be UTF-8 text, or gzip if it ends in .gz"
        raise ConfigError(f"{file}: {what}") from None


def _answered(text: str, fields: Mapping[str, str], file: Path, line: int) -> Answered:
    """ValueError says what is wrong with the line and what to do."""
    try:
        found: Any = json.loads(text)
    except json.JSONDecodeError as error:
        what = f"broken JSON at column {error.colno} ({error.msg}); put one whole object on each line"
        raise ValueError(what) from None
    if not isinstance(found, dict):
        raise ValueError(f"not a JSON object (got {type(found).__name__}); put one object on each line")
    given = cast(dict[str, Any], found)
    taken = {path for path in fields.values() if path in given}
    row = {name: value for name, value in given.items() if name not in taken}
    row |= {name: _at(given, path) for name, path in fields.items()}
    seed = row.get("seed", line)
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise ValueError(f"'seed' is not a whole number (got {seed!r}); write one, 0 or more")
    task = Task(
        id=str(row.get("id", line)),
        domain=str(row.get("domain", file.name.removesuffix(".gz").removesuffix(".jsonl"))),
        messages=_messages(row),
        answer=row.get("answer"),
        metadata={name: value for name, value in row.items() if name not in _OWN},
        seed=seed,
    )
    return Answered(line=line, task=task, replies=_replies(row))


def _at(row: dict[str, Any], path: str) -> Any:
    if path in row:
        return row[path]
    found: Any = row
    for part in path.split("."):
        entries = (
            {str(place): entry for place, entry in enumerate(cast(list[Any], found))}
            if isinstance(found, list)
            else found
        )
        if not isinstance(entries, dict) or part not in entries:
            raise ValueError(f"no field {path!r} (has {', '.join(row) or 'none'}); correct --field")
        found = cast(dict[str, Any], entries)[part]
    return found


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
