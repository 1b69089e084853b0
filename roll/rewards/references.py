"""Right responses to a task, made from its own fields: each must score 1 for the task to be usable."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from roll.data.messages import message_text
from roll.rewards.cheats import fence
from roll.types import Task

_SOLUTIONS = ("reference", "reference_solution", "canonical_solution", "solution")
_WORKED = {"math": ("worked", "solution", "reference_solution"), "ifeval": ("example", "reference")}
"""Metadata fields that hold a whole response, by reward."""
_STATES_ANSWER = re.compile(r"\\boxed|####|</answer>|\banswer(?: is|:)", re.IGNORECASE)
"""Marks of a final answer; a worked solution without one is not a response that `math` must understand."""
_FORM_ONLY = frozenset({"ifeval", "regex", "json_schema"})
"""Rewards that do not read the answer of a task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RightResponse:
    """A right response in every form it may take; at least one form must score 1."""

    origin: str
    """The field of the task that it is from."""
    forms: tuple[str, ...]


def references(kind: str, task: Task) -> list[RightResponse]:
    """The right responses that a task gives for the reward `kind`; empty if it gives none."""
    right = _programs(task) if kind == "code" else _answer(kind, task)
    for field in _WORKED.get(kind, ()):
        text = task.metadata.get(field)
        if isinstance(text, str) and text.strip() and (kind != "math" or _STATES_ANSWER.search(text)):
            right.append(RightResponse(origin=f"its {field}", forms=(text,)))
    if task.reply is not None and (text := message_text(task.reply)).strip():
        right.append(RightResponse(origin="the assistant's last message", forms=(text,)))
    return right


def answers(task: Task) -> list[str]:
    """The answer of a task as text, or each of its aliases."""
    answer: object = task.answer
    aliases = cast(list[object], answer) if isinstance(answer, list) else [] if answer is None else [answer]
    texts = [json.dumps(alias, default=str) if isinstance(alias, dict | list) else str(alias) for alias in aliases]
    return [text for text in texts if text.strip()]


def _answer(kind: str, task: Task) -> list[RightResponse]:
    texts = [] if kind in _FORM_ONLY else answers(task)
    if kind == "math" and texts:
        texts = [str(task.answer)]
    forms = tuple(form for text in texts for form in _FORMS.get(kind, _every_form)(text))
    return [RightResponse(origin="its answer", forms=forms)] if forms else []


def _programs(task: Task) -> list[RightResponse]:
    """The solution of a task, alone and as a continuation of the prompt."""
    for name in _SOLUTIONS:
        text: Any = task.metadata.get(name)
        if isinstance(text, str) and text.strip():
            break
    else:
        name, text = "answer", task.answer
    if not isinstance(text, str) or not text.strip():
        return []
    prompt = message_text(task.messages[-1]) if task.messages else ""
    forms = (text if "```" in text else fence(text), fence(f"{prompt.rstrip()}\n{text}"))
    return [RightResponse(origin=f"its {name}", forms=forms)]


def _boxed(text: str) -> tuple[str, ...]:
    """The final part of an answer in a box; an answer that holds a worked solution so fails."""
    return (f"\\boxed{{{text.rpartition('####')[2].strip()}}}",)


def _stated(text: str) -> tuple[str, ...]:
    return (f"The answer is {text}.", text, f"\\boxed{{{text}}}")


def _every_form(text: str) -> tuple[str, ...]:
    return (text, f"\\boxed{{{text}}}", f"The answer is {text}.", f"<answer>{text}</answer>", fence(text))


_FORMS: dict[str, Callable[[str], tuple[str, ...]]] = {
    "exact": lambda text: (text,),
    "f1": lambda text: (text,),
    "math": _boxed,
    "choice": _stated,
    "reasoning_gym": lambda text: (text, f"<answer>{text}</answer>"),
}
"""An answer as the response that each reward accepts; any other reward may accept every form."""
