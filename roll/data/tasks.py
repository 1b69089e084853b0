"""Where tasks come from: a file of them, or nothing but seeds for environments that make their own."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast, overload

from roll.errors import ConfigError
from roll.types import Message, Task

_CHECKED_BY = frozenset({"answer", "tests", "instruction_id_list", "rg", "level", "receptacles", "actions", "chosen"})
"""Fields that say how an attempt is judged; a row needs one of them."""
_STAGED_BY = frozenset({"level", "receptacles"})
"""Fields from which an environment makes its own opening words."""
_OWN = frozenset({"id", "domain", "prompt", "messages", "answer", "seed"})
_MOST_FAULTS = 10


def jsonl(path: str) -> list[Task]:
    """The tasks of a `.jsonl` or `.jsonl.gz` file, one JSON object a line.

    A row has `prompt` (text) or `messages` (a list of role and content) and, as a rule, `answer`. `id` and `seed`
    default to the line number, `domain` to the file's name; every other field is metadata. Blank lines are skipped.
    """
    file = Path(path)
    tasks: list[Task] = []
    faults: list[str] = []
    first_line: dict[str, int] = {}
    for line, text in _lines(file):
        try:
            task = _task(text, file, line)
        except ValueError as fault:
            faults.append(f"{file}:{line}: {fault}")
            continue
        if task.id in first_line:
            faults.append(f"{file}:{line}: id {task.id!r} is line {first_line[task.id]}'s already; give each its own")
        first_line.setdefault(task.id, line)
        tasks.append(task)
    if faults:
        more = (
            [f"{file}: {len(faults) - _MOST_FAULTS} more faults; fix these first"] if len(faults) > _MOST_FAULTS else []
        )
        raise ConfigError("\n".join([*faults[:_MOST_FAULTS], *more]))
    if not tasks:
        raise ConfigError(f"{file}: no tasks in it; put one JSON object on each line")
    return tasks


class Seeds(Sequence[Task]):
    """Tasks that are nothing but a seed, made when asked for."""

    def __init__(self, seeds: range, domain: str) -> None:
        self._seeds, self._domain = seeds, domain

    def within(self, domain: str) -> Seeds:
        """The same seeds as tasks of another domain."""
        return Seeds(self._seeds, domain)

    def __len__(self) -> int:
        return len(self._seeds)

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> list[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | list[Task]:
        if isinstance(index, slice):
            return [self._task(seed) for seed in self._seeds[index]]
        return self._task(self._seeds[index])

    def _task(self, seed: int) -> Task:
        return Task(id=f"seed-{seed}", domain=self._domain, seed=seed)


def seeds(count: int = 1_000_000, start: int = 0) -> Seeds:
    """Tasks for environments that make their own world from a seed; hold some out with another `start`."""
    if count < 1 or start < 0:
        raise ConfigError(f"seeds: needs count >= 1 and start >= 0 (got count {count}, start {start}); change them")
    return Seeds(range(start, start + count), "seeds")


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines that are not blank; a file that cannot be read is the user's to fix."""
    try:
        with gzip.open(file, "rt", encoding="utf-8") if file.suffix == ".gz" else file.open(encoding="utf-8") as stream:
            for line, text in enumerate(stream, start=1):
                if text.strip():
                    yield line, text.strip()
    except FileNotFoundError:
        raise ConfigError(f"{file}: no such file; check the path (it is relative to the current directory)") from None
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{file}: cannot be read ({error}); it must be UTF-8 text, or gzip if it ends in .gz"
        ) from None


def _task(text: str, file: Path, line: int) -> Task:
    """One row as a task; ValueError says what is wrong with it and what to do."""
    try:
        found: Any = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"broken JSON at column {error.colno} ({error.msg}); put one whole object on each line"
        ) from None
    if not isinstance(found, dict):
        raise ValueError(f"not a JSON object (got {type(found).__name__}); put one object on each line")
    row = cast(dict[str, Any], found)
    messages = _messages(row)
    if not _CHECKED_BY & row.keys() or ("answer" in row and row["answer"] in (None, "")):
        raise ValueError("no 'answer'; add what a right attempt is compared with")
    seed = row.get("seed", line)
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise ValueError(f"'seed' is not a whole number (got {seed!r}); write one, 0 or more")
    return Task(
        id=str(row.get("id", line)),
        domain=str(row.get("domain", file.name.removesuffix(".gz").removesuffix(".jsonl"))),
        messages=messages,
        answer=row.get("answer"),
        metadata={key: value for key, value in row.items() if key not in _OWN},
        seed=seed,
    )


def _messages(row: dict[str, Any]) -> tuple[Message, ...]:
    prompt, messages = row.get("prompt"), row.get("messages")
    if isinstance(prompt, str) and prompt and messages is None:
        return (Message("user", prompt),)
    if prompt is None and isinstance(messages, list) and messages:
        return tuple(_message(entry) for entry in cast(list[Any], messages))
    if prompt is None and messages is None and _STAGED_BY & row.keys():
        return ()
    if prompt is None and messages is None:
        raise ValueError("neither 'prompt' nor 'messages'; add one of them")
    if prompt is not None and messages is not None:
        raise ValueError("both 'prompt' and 'messages'; keep one of them")
    raise ValueError("'prompt' must be text and 'messages' a list, neither of them empty; correct it")


def _message(entry: Any) -> Message:
    if not isinstance(entry, dict):
        raise ValueError(f"a message is not an object (got {entry!r}); write {{role, content}}")
    fields = cast(dict[str, Any], entry)
    role, content = fields.get("role"), fields.get("content")
    if not isinstance(role, str) or not isinstance(content, str):
        raise ValueError(f"a message needs 'role' and 'content' as text (got {fields!r}); write both")
    return Message(role, content)
