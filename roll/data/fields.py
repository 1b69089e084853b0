"""From the rows of a file to tasks: what the rows call things, and every fault in its place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from string import Formatter
from typing import Any, cast

from roll.errors import ConfigError
from roll.types import Message, Task

_OWN = ("prompt", "messages", "answer", "id", "seed")
_CHECKED_BY = frozenset(
    {"answer", "tests", "cases", "pattern", "schema", "instruction_id_list", "rg", "level", "receptacles", "actions"}
    | {"chosen"}
)
"""Fields that say how an attempt is judged; a row needs one of them."""
_STAGED_BY = frozenset({"level", "receptacles"})
"""Fields from which an environment makes its own opening words."""
_MOST_FAULTS = 10
_MOST_NAMES = 12
"""Fields of a row that an error lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """Where rows keep the parts of a task: names of fields or dotted paths; None: the part's own name, if it is there.

    What is not named here becomes metadata as it is.
    """

    prompt: str | None = None
    messages: str | None = None
    answer: str | None = None
    id: str | None = None
    seed: str | None = None
    template: str | None = None
    """Makes the prompt, with `{path}` for fields."""
    system: str | None = None
    """The content of a system message before the others."""
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    """The name under which metadata has it, and its path."""
    constants: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Laid over every row."""


PLAIN = Fields()


def tasks_from(
    rows: Iterable[tuple[int, Any]], fields: Fields = PLAIN, *, place: str, domain: str, unit: str = "row"
) -> list[Task]:
    """A task for each numbered row, or one error with a line for each faulty row: `place:number: what is wrong`.

    A row that is a `ValueError` is a fault that was found in reading it.
    """
    tasks: list[Task] = []
    faults: list[str] = []
    first: dict[str, int] = {}
    for number, row in rows:
        try:
            task = task_from(row, fields, number=number, domain=domain)
        except ValueError as fault:
            faults.append(f"{place}:{number}: {fault}")
            continue
        if task.id in first:
            taken = f"{unit} {first[task.id]}'s already"
            faults.append(f"{place}:{number}: id {task.id!r} is {taken}; give each its own")
        first.setdefault(task.id, number)
        tasks.append(task)
    if faults:
        rest = len(faults) - _MOST_FAULTS
        more = [f"{place}: {rest} more faults; fix these first"] if rest > 0 else []
        raise ConfigError("\n".join([*faults[:_MOST_FAULTS], *more]))
    if not tasks:
        raise ConfigError(f"{place}: no tasks in it; put one object in each {unit}")
    return tasks


def task_from(found: Any, fields: Fields, *, number: int, domain: str) -> Task:
    """One row as a task; ValueError says what is wrong with it and what to do."""
    if isinstance(found, ValueError):
        raise found
    if not isinstance(found, dict):
        raise ValueError(f"not a JSON object (got {type(found).__name__}); put one object on each line")
    row = {**cast(dict[str, Any], found), **fields.constants}
    own, metadata = _sorted_out(row, fields)
    messages = _with_system(_messages(own, metadata, row), fields.system)
    if not (own.keys() | metadata.keys()) & _CHECKED_BY or ("answer" in own and own["answer"] in (None, "")):
        raise ValueError(
            f"no 'answer'; add what a right attempt is compared with, or map it with tasks.fields{_has(row)}"
        )
    seed = own.get("seed", number)
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise ValueError(f"'seed' is not a whole number (got {seed!r}); write one, 0 or more")
    return Task(
        id=str(own.get("id", number)),
        domain=str(metadata.pop("domain", domain)),
        messages=messages,
        answer=own.get("answer"),
        metadata=metadata,
        seed=seed,
    )


def look_up(row: Mapping[str, Any], path: str) -> Any:
    """The field of that name, or what a dotted path leads to; numbers count the entries of a list."""
    if path in row:
        return row[path]  # a name may have a dot in it
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


def _sorted_out(row: dict[str, Any], fields: Fields) -> tuple[dict[str, Any], dict[str, Any]]:
    """The parts of a task that are its own, and everything else."""
    paths = {name: path for name in _OWN if (path := cast(str | None, getattr(fields, name))) is not None}
    own = {name: look_up(row, path) for name, path in paths.items()}
    replaced = {"prompt", "messages"} if {"prompt", "messages"} & own.keys() or fields.template else set[str]()
    kept = {name for name in _OWN if name in row and name not in own and name not in replaced}
    own |= {name: row[name] for name in kept}
    own = {name: value for name, value in own.items() if name == "answer" or value is not None}  # tables have nulls
    used = {*kept, *paths.values(), *fields.metadata.values()}
    metadata = {name: value for name, value in row.items() if name not in used}
    metadata |= {name: look_up(row, path) for name, path in fields.metadata.items()}
    if fields.template is not None:
        own["prompt"] = _filled(fields.template, row)
    return own, metadata


def _filled(template: str, row: dict[str, Any]) -> str:
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


def _messages(own: dict[str, Any], metadata: dict[str, Any], row: dict[str, Any]) -> tuple[Message, ...]:
    prompt, messages = own.get("prompt"), own.get("messages")
    if isinstance(prompt, str) and prompt and messages is None:
        return (Message("user", prompt),)
    if prompt is None and isinstance(messages, list) and messages:
        return tuple(_message(entry) for entry in cast(list[Any], messages))
    if prompt is None and messages is None and _STAGED_BY & metadata.keys():
        return ()
    if prompt is None and messages is None:
        raise ValueError(f"neither 'prompt' nor 'messages'; add one of them, or map one with tasks.fields{_has(row)}")
    if prompt is not None and messages is not None:
        raise ValueError("both 'prompt' and 'messages'; keep one of them")
    raise ValueError("'prompt' must be text and 'messages' a list, neither of them empty; correct it")


def _with_system(messages: tuple[Message, ...], system: str | None) -> tuple[Message, ...]:
    if system is None:
        return messages
    if any(message.role == "system" for message in messages):
        raise ValueError("it has a system message of its own, and tasks.fields.system; keep one of them")
    return (Message("system", system), *messages)


def _message(entry: Any) -> Message:
    if not isinstance(entry, dict):
        raise ValueError(f"a message is not an object (got {entry!r}); write {{role, content}}")
    fields = cast(dict[str, Any], entry)
    role, content = fields.get("role"), fields.get("content")
    if not isinstance(role, str) or not isinstance(content, str):
        raise ValueError(f"a message needs 'role' and 'content' as text (got {fields!r}); write both")
    return Message(role, content)


def _has(row: Mapping[str, Any]) -> str:
    return f" (the row {_names(row)})"


def _names(entries: Any) -> str:
    """What there is instead, for an error."""
    if not isinstance(entries, Mapping):
        return f"is {type(entries).__name__}"
    names = [str(name) for name in cast(Mapping[Any, Any], entries)]
    more = ", ..." if len(names) > _MOST_NAMES else ""
    return f"has {', '.join(names[:_MOST_NAMES])}{more}" if names else "has nothing"
