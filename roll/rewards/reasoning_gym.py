"""Procedural reasoning tasks, scored by the `score_answer` of their dataset in the package reasoning_gym.

Some of those scorers evaluate the answer as Python. For them, answers are restricted to the few forms an answer can
have, so that a response is never executed; the lists below fit version 0.1.25.
"""

from __future__ import annotations

import functools
import importlib
import json
import re
from collections.abc import Callable
from typing import Any, cast

from roll.errors import ConfigError
from roll.rewards.response import answer_text
from roll.types import Score, Task

_MAX_CHARS = 10_000
_MAX_FORMULA_CHARS = 300
_MAX_POWERS_OF_SUMS = 3

_GRID = re.compile(r"[A-Za-z0-9_\s]*|(?:[\d,\s\[\]]|'\w'|\"\w\")*")
_ARITHMETIC = re.compile(r"(?:\d{1,9}(?!\d)|[-+/() ]|\*(?!\*))*")
_NAME = r"(?:sin|cos|tan|asin|acos|atan|exp|log|sqrt|[a-zA-MPRT-Z])(?![A-Za-z_\d])"
_FORMULA = re.compile(rf"(?:\d{{1,15}}(?:\.\d{{1,9}})?(?![\d.])|(?<![A-Za-z_\d.]){_NAME}|\*\*|[-+*/() ])*")
_PARSE_ERRORS = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, SyntaxError, RecursionError)
"""Raised by scorers for an answer of an unexpected form."""
_POWER = re.compile(r"(\)?)\*\*(?:(\d+)|\(-?(\d+)(?:/(\d+))?\))?(\*\*)?")


def score(task: Task, response: str) -> Score:
    """The dataset's score of the response, or of the text in its answer tags.

    The task names its dataset in the field `task` and its entry in `rg`: `seed`, `size`, `index` and any other option
    of the dataset. If the package generates a different entry from these, the task is refused. A response that the
    scorer cannot parse scores 0.
    """
    dataset, entry = _entry(*_parse_origin(task))
    same_question = any(str(entry["question"]).strip() in message.content for message in task.messages)
    # Some entries have several answers, of which one is drawn.
    if not same_question and task.answer is not None and str(entry["answer"]) != str(task.answer):
        raise ConfigError(
            f"task {task.id!r}: reasoning_gym makes another entry of its 'rg' (got {entry['answer']!r}, not "
            f"{task.answer!r}); install the version that the task was made with, or leave out this dataset"
        )
    answer = answer_text(response).strip()
    is_safe = _EVALUATED.get(str(task.metadata["task"]))
    if len(answer) > _MAX_CHARS or (is_safe is not None and not is_safe(answer)):
        return Score(0.0)
    try:
        return Score(float(dataset.score_answer(answer=answer, entry=entry)))
    except _PARSE_ERRORS:
        return Score(0.0)


def _parse_origin(task: Task) -> tuple[str, int, str]:
    """The dataset's name, the index of the entry, and the dataset's options as JSON."""
    name, entry = task.metadata.get("task"), task.metadata.get("rg")
    if not isinstance(name, str) or name == "composite" or not isinstance(entry, dict):
        raise ConfigError(
            f"task {task.id!r}: names no entry of reasoning_gym (got task {name!r}, rg {entry!r}); write the dataset "
            "in 'task' and {seed, size, index} in 'rg'"
        )
    fields = cast(dict[str, Any], entry)
    if not all(isinstance(fields.get(key), int) for key in ("seed", "size", "index")):
        raise ConfigError(f"task {task.id!r}: rg lacks seed, size or index (got {entry!r}); write whole numbers")
    settings = {key: value for key, value in fields.items() if key != "index"}
    return name, fields["index"], json.dumps(settings, sort_keys=True)


@functools.lru_cache(maxsize=1024)
def _entry(name: str, index: int, settings: str) -> tuple[Any, dict[str, Any]]:
    dataset = _dataset(name, settings)
    if not 0 <= index < len(dataset):
        raise ConfigError(f"dataset {name!r} of reasoning_gym: no entry {index} (it has {len(dataset)}); fix 'rg'")
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
        raise ConfigError(f"dataset {name!r} of reasoning_gym: {error}; fix the task's 'task' or 'rg'") from None


def _grid(answer: str) -> bool:
    """Whether an answer has only words and numbers, or lists of numbers and single characters."""
    return _GRID.fullmatch(answer) is not None


def _arithmetic(answer: str) -> bool:
    return len(answer) <= _MAX_FORMULA_CHARS and _ARITHMETIC.fullmatch(answer) is not None


def _formula(answer: str) -> bool:
    """Whether an answer is a formula with small powers, so that evaluating it is cheap."""
    if len(answer) > _MAX_FORMULA_CHARS or _FORMULA.fullmatch(answer) is None:
        return False
    powers = _POWER.findall(answer.replace(" ", ""))
    small = [
        not again and any(parts) and max(int(part or 0) for part in parts) <= (9 if base else 99)
        for base, *parts, again in powers
    ]
    return all(small) and sum(bool(base) for base, *_ in powers) <= _MAX_POWERS_OF_SUMS


_EVALUATED: dict[str, Callable[[str], bool]] = {
    **dict.fromkeys(("string_insertion", "binary_matrix", "spiral_matrix", "n_queens"), _grid),
    **dict.fromkeys(("countdown", "puzzle24"), _arithmetic),
    **dict.fromkeys(("simple_integration", "intermediate_integration", "polynomial_multiplication"), _formula),
}
"""By dataset whose scorer evaluates the answer: whether an answer is safe for it."""
