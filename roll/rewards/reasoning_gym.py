"""Procedural reasoning tasks: scored by the `score_answer` of the dataset they come from, in the package reasoning_gym.

Some of those scorers evaluate the answer as Python. What they are given is held to the few forms an answer can have, so
that a reply is never a program; the lists below are those of version 0.1.25.
"""

from __future__ import annotations

import functools
import importlib
import json
import re
from collections.abc import Callable
from typing import Any, cast

from roll.errors import ConfigError
from roll.rewards.reply import spoken
from roll.types import Score, Task

_LONGEST = 10_000
_LONGEST_FORMULA = 300
_MOST_POWERS_OF_SUMS = 3

_GRID = re.compile(r"[A-Za-z0-9_\s]*|(?:[\d,\s\[\]]|'\w'|\"\w\")*")
_ARITHMETIC = re.compile(r"(?:\d{1,9}(?!\d)|[-+/() ]|\*(?!\*))*")
_NAME = r"(?:sin|cos|tan|asin|acos|atan|exp|log|sqrt|[a-zA-MPRT-Z])(?![A-Za-z_\d])"
_FORMULA = re.compile(rf"(?:\d{{1,15}}(?:\.\d{{1,9}})?(?![\d.])|(?<![A-Za-z_\d.]){_NAME}|\*\*|[-+*/() ])*")
_UNREADABLE = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, SyntaxError, RecursionError)
"""What scorers raise over an answer that is not of the form they expect."""
_POWER = re.compile(r"(\)?)\*\*(?:(\d+)|\(-?(\d+)(?:/(\d+))?\))?(\*\*)?")


def score(task: Task, reply: str) -> Score:
    """What the task's dataset thinks of the reply, or of what stands between its answer tags.

    The task names its dataset in the field `task` and its entry in `rg`: `seed`, `size` and `index`, and whatever else
    the dataset was made with. Where the package makes another entry of it than the task is, the task is refused. A
    reply that the scorer cannot read scores 0.
    """
    dataset, entry = _entry(*_origin(task))
    if not _same(task, entry):
        raise ConfigError(
            f"task {task.id!r}: reasoning_gym makes another entry of its 'rg' (got {entry['answer']!r}, not "
            f"{task.answer!r}); install the version that the task was made with, or leave out this dataset"
        )
    said = spoken(reply).strip()
    plain = _EVALUATED.get(str(task.metadata["task"]))
    if len(said) > _LONGEST or (plain is not None and not plain(said)):
        return Score(0.0)
    try:
        return Score(float(dataset.score_answer(answer=said, entry=entry)))
    except _UNREADABLE:
        return Score(0.0)


def _same(task: Task, entry: dict[str, Any]) -> bool:
    """Whether an entry asks or answers what the task does; some entries have several answers, of which one is drawn."""
    asked = any(str(entry["question"]).strip() in message.content for message in task.messages)
    return asked or task.answer is None or str(entry["answer"]) == str(task.answer)


def _origin(task: Task) -> tuple[str, int, str]:
    """The name of the task's dataset, the index of its entry and, as JSON, how the dataset is made."""
    name, made = task.metadata.get("task"), task.metadata.get("rg")
    if not isinstance(name, str) or name == "composite" or not isinstance(made, dict):
        raise ConfigError(
            f"task {task.id!r}: names no entry of reasoning_gym (got task {name!r}, rg {made!r}); write the dataset "
            "in 'task' and {seed, size, index} in 'rg'"
        )
    fields = cast(dict[str, Any], made)
    if not all(isinstance(fields.get(key), int) for key in ("seed", "size", "index")):
        raise ConfigError(f"task {task.id!r}: rg lacks seed, size or index (got {made!r}); write whole numbers")
    settings = {key: value for key, value in fields.items() if key != "index"}
    return name, fields["index"], json.dumps(settings, sort_keys=True)


@functools.lru_cache(maxsize=1024)
def _entry(name: str, index: int, settings: str) -> tuple[Any, dict[str, Any]]:
    dataset = _dataset(name, settings)
    if not 0 <= index < len(dataset):
        raise ConfigError(f"dataset {name!r} of reasoning_gym: no entry {index} (it has {len(dataset)}); mend 'rg'")
    return dataset, dataset[index]


@functools.lru_cache(maxsize=128)
def _dataset(name: str, settings: str) -> Any:
    try:
        package: Any = importlib.import_module("reasoning_gym")
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"reward 'reasoning_gym': no module named {error.name!r}; run `pip install reasoning-gym==0.1.25`"
        ) from None
    try:
        return package.create_dataset(name, **json.loads(settings))
    except (ValueError, TypeError, AssertionError) as error:
        raise ConfigError(f"dataset {name!r} of reasoning_gym: {error}; mend the task's 'task' or 'rg'") from None


def _grid(answer: str) -> bool:
    """Whether an answer is plain words and numbers, or lists of numbers and single characters."""
    return _GRID.fullmatch(answer) is not None


def _arithmetic(answer: str) -> bool:
    return len(answer) <= _LONGEST_FORMULA and _ARITHMETIC.fullmatch(answer) is not None


def _formula(answer: str) -> bool:
    """Whether an answer is a formula of small powers, which cannot grow beyond bounds when it is evaluated."""
    if len(answer) > _LONGEST_FORMULA or _FORMULA.fullmatch(answer) is None:
        return False
    powers = _POWER.findall(answer.replace(" ", ""))
    bounded = [
        not again and any(parts) and max(int(part or 0) for part in parts) <= (9 if base else 99)
        for base, *parts, again in powers
    ]
    return all(bounded) and sum(bool(base) for base, *_ in powers) <= _MOST_POWERS_OF_SUMS


_EVALUATED: dict[str, Callable[[str], bool]] = {
    "string_insertion": _grid,
    "binary_matrix": _grid,
    "spiral_matrix": _grid,
    "n_queens": _grid,
    "countdown": _arithmetic,
    "puzzle24": _arithmetic,
    "simple_integration": _formula,
    "intermediate_integration": _formula,
    "polynomial_multiplication": _formula,
}
"""By dataset whose scorer evaluates the answer: whether an answer is safe to give to it."""
