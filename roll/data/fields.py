"""Tasks from the rows of a file, with a line number for every fault."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Callable, Iterable, Mapping
from string import Formatter
from typing import Any, TypeVar, cast

from roll.config.sources import Fields
from roll.data.messages import message_text, openai_row, parse_chat
from roll.errors import ConfigError
from roll.types import Message, Task

T = TypeVar("T")
_TASK_FIELDS = ("prompt", "messages", "answer", "id", "seed")
_CHECKED_BY = frozenset(
    {"answer", "tests", "cases", "pattern", "schema", "instruction_id_list", "rg", "level", "receptacles", "actions"}
    | {"chosen"}
)
"""Fields by which rewards and environments judge an attempt; a row needs one of them."""
_STAGED_BY = frozenset({"level", "receptacles"})
"""Fields from which an environment generates its opening messages, so that a row needs no prompt."""
_MOST_FAULTS = 10
_MOST_NAMES = 12
"""Most fields of a row that an error lists."""
PLAIN = Fields()


def tasks_from(
    rows: Iterable[tuple[int, Any]], fields: Fields = PLAIN, *, where: str, domain: str, unit: str = "row"
) -> list[Task]:
    """A task per numbered row; see `parse_rows`."""
    first: dict[str, int] = {}

    def parse(number: int, row: Any) -> Task:
        task = task_from(row, fields, number=number, domain=domain)
        if first.setdefault(task.id, number) != number:
            raise ValueError(f"id {task.id!r} is that of {unit} {first[task.id]}; give each its own")
        return task

    return parse_rows(rows, parse, where=where, empty=f"no tasks in it; put one object in each {unit}")


def parse_rows(rows: Iterable[tuple[int, Any]], parse: Callable[[int, Any], T], *, where: str, empty: str) -> list[T]:
    """The parsed rows, or one error with a line for each invalid row: `where:number: what is wrong`.

    `parse` gets the number and the row, and raises ValueError. A row that is a `ValueError` could not be read.
    """
    parsed: list[T] = []
    faults: list[str] = []
    for number, row in rows:
        try:
            if isinstance(row, ValueError):
                raise row
            parsed.append(parse(number, row))
        except ValueError as fault:
            faults.append(f"{where}:{number}: {fault}")
    if faults:
        rest = len(faults) - _MOST_FAULTS
        more = [f"{where}: {rest} more faults; fix these first"] if rest > 0 else []
        raise ConfigError("\n".join([*faults[:_MOST_FAULTS], *more]))
    if not parsed:
        raise ConfigError(f"{where}: {empty}")
    return parsed


def task_from(value: Any, fields: Fields, *, number: int, domain: str) -> Task:
    """One row as a task; ValueError with the fault and its remedy if it is invalid."""
    row = {**parse_object(value), **fields.constants}
    _refuse_half_pairs(row)
    if not (fields.prompt or fields.messages or fields.template):
        row = openai_row(row)
    parts, metadata = _split_fields(row, fields)
    messages, reply = _messages(parts, metadata, row)
    messages = _with_system(messages, fields.system)
    if reply is not None and parts.get("answer") is None:
        parts["answer"] = message_text(reply)
    if not (parts.keys() | metadata.keys()) & _CHECKED_BY or ("answer" in parts and parts["answer"] in (None, "")):
        what = "no 'answer'; add what a right attempt is compared with, or map it with tasks.fields"
        raise ValueError(f"{what} (the row {_names(row)})")
    return Task(
        id=str(parts.get("id", number)),
        domain=str(metadata.pop("domain", domain)),
        messages=messages,
        answer=parts.get("answer"),
        metadata=metadata,
        seed=parse_seed(parts.get("seed", number)),
        reply=reply,
    )


def _refuse_half_pairs(value: Any, key: str = "") -> None:
    """ValueError if a text has half of a surrogate pair, which neither a tokenizer nor the journal can encode."""
    if isinstance(value, str):
        if not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
            raise ValueError(f"{key!r} has half of a surrogate pair (got {reprlib.repr(value)}); remove it")
    elif isinstance(value, dict):
        for name, entry in cast(dict[Any, Any], value).items():
            _refuse_half_pairs(name, key or str(name))
            _refuse_half_pairs(entry, key or str(name))
    elif isinstance(value, list):
        for entry in cast(list[Any], value):
            _refuse_half_pairs(entry, key)


def parse_object(value: Any) -> dict[str, Any]:
    """The fields of a row."""
    if not isinstance(value, dict):
        raise ValueError(f"not a JSON object (got {type(value).__name__}); put one object on each line")
    return cast(dict[str, Any], value)


def parse_seed(value: Any) -> int:
    """A seed; ValueError if it is none."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"'seed' is not a whole number (got {value!r}); write one, 0 or more")
    return value


def look_up(row: Mapping[str, Any], path: str) -> Any:
    """The value at a field name or a dotted path; numbers in a path are indices of lists."""
    if path in row:
        return row[path]  # a name may contain a dot
    here: Any = row
    parts = path.split(".")
    for depth, part in enumerate(parts):
        entries = dict(enumerate(cast(list[Any], here))) if isinstance(here, list) else here
        key = int(part) if isinstance(here, list) and part.isdecimal() else part
        if not isinstance(entries, Mapping) or key not in entries:
            above = f"{'.'.join(parts[:depth])!r} " if depth else ""
            raise ValueError(f"no field {path!r} ({above}{_names(cast(Any, entries))}); map it with tasks.fields")
        here = cast(Mapping[Any, Any], entries)[key]
    return here


def _split_fields(row: dict[str, Any], fields: Fields) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields of the task record, and the metadata."""
    paths = {name: path for name in _TASK_FIELDS if (path := cast(str | None, getattr(fields, name))) is not None}
    parts = {name: look_up(row, path) for name, path in paths.items()}
    replaced = {"prompt", "messages"} if {"prompt", "messages"} & parts.keys() or fields.template else set[str]()
    default = {name for name in _TASK_FIELDS if name in row and name not in parts and name not in replaced}
    parts |= {name: row[name] for name in default}
    parts = {name: value for name, value in parts.items() if name == "answer" or value is not None}  # tables have nulls
    used = {*default, *paths.values(), *fields.metadata.values()}
    metadata = {name: value for name, value in row.items() if name not in used}
    metadata |= {name: look_up(row, path) for name, path in fields.metadata.items()}
    if fields.template is not None:
        parts["prompt"] = _fill(fields.template, row)
    return parts, metadata


def _fill(template: str, row: dict[str, Any]) -> str:
    pieces: list[str] = []
    for text, path, _, _ in Formatter().parse(template):
        pieces.append(text)
        if path is not None:
            value = look_up(row, path)
            if not isinstance(value, str | int | float):
                raise ValueError(
                    f"field {path!r} is neither text nor a number (got {value!r}); name another in template"
                )
            pieces.append(str(value))
    return "".join(pieces)


def _messages(
    parts: dict[str, Any], metadata: dict[str, Any], row: dict[str, Any]
) -> tuple[tuple[Message, ...], Message | None]:
    """The prompt, and the assistant's reply to it if the row is a chat that ends with one."""
    prompt, messages = parts.get("prompt"), _parse_list(parts.get("messages"))
    if isinstance(prompt, str) and prompt and messages is None:
        return (Message("user", prompt),), None
    if prompt is None and isinstance(messages, list) and messages:
        return parse_chat(cast(list[Any], messages))
    if prompt is None and messages is None and _STAGED_BY & metadata.keys():
        return (), None
    if prompt is None and messages is None:
        what = "neither 'prompt' nor 'messages'; add one of them, or map one with tasks.fields"
        raise ValueError(f"{what} (the row {_names(row)})")
    if prompt is not None and messages is not None:
        raise ValueError("both 'prompt' and 'messages'; keep one of them")
    raise ValueError("'prompt' must be text and 'messages' a list, neither of them empty; correct it")


def _parse_list(messages: Any) -> Any:
    """Messages that a table stores as JSON text are parsed; all else is returned unchanged."""
    if not isinstance(messages, str):
        return messages
    try:
        return json.loads(messages)
    except (ValueError, RecursionError):
        raise ValueError("'messages' is text, but not a list in JSON; correct it") from None


def _with_system(messages: tuple[Message, ...], system: str | None) -> tuple[Message, ...]:
    if system is None:
        return messages
    if any(message.role == "system" for message in messages):
        raise ValueError("it has a system message, and tasks.fields.system adds one; keep one of them")
    return (Message("system", system), *messages)


def _names(entries: Any) -> str:
    """The available names, for an error."""
    if not isinstance(entries, Mapping):
        return f"is {type(entries).__name__}"
    names = [str(name) for name in cast(Mapping[Any, Any], entries)]
    more = ", ..." if len(names) > _MOST_NAMES else ""
    return f"has {', '.join(names[:_MOST_NAMES])}{more}" if names else "has nothing"
