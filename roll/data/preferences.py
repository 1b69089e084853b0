"""Preferences: a prompt with a chosen and a rejected reply, or with one reply and a label, read from JSON lines.

Rows have one of these forms. A reply is text, a message, or a chat that ends with the assistant; without a prompt it is
what two chats, or two transcripts, have in common.

    {"prompt": ..., "chosen": ..., "rejected": ...}
    {"prompt": ..., "response": ..., "label": true}
    {"prompt": ..., "response": ..., "rating": 4}
    {"prompt": ..., "responses": [...], "ratings": [...]}        the best against the worst, or each alone
    {"prompt": ..., "steps": [...], "labels": [true, ...]}       or "response", whose steps a separator ends

`messages` or `conversations` may take the place of `prompt`. A pair may have a "margin", and every row a "source".
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, TypeAlias, cast

from roll.config.preferences import Ratings
from roll.data.fields import parse_object, parse_rows
from roll.data.messages import message_text, openai_row, parse_message
from roll.data.task_file import numbered_objects
from roll.types import Message

_SPEAKER = re.compile(r"\n\n(Human|Assistant):\s*")
"""Beginning of a turn in a transcript."""
_ROLES = {"Human": "user", "Assistant": "assistant"}
_SINGLE = ("response", "completion")
"""Names of a single reply."""
_STEPS = ("steps", "completions")
"""Names of the steps of a reply."""
Turns: TypeAlias = tuple[Message, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledStep:
    """A step of a reply."""

    end: int
    """Characters of the reply up to its end, the separator after it included."""
    label: float
    """1 for a right step, 0 for a wrong one, or the probability that it is right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preference:
    """One row: two replies to a prompt, chosen first, or one with a label, a rating or labels of its steps."""

    where: str
    """File and line, for errors."""
    messages: Turns
    """The prompt."""
    replies: Turns
    """Chosen and rejected, or the only one."""
    desirable: bool | None = None
    """Label of a single reply; None for a pair, and where a rating gives no label."""
    tied: bool = False
    """Whether the ratings of its replies are all the same."""
    rating: float | None = None
    """Of a single reply; None if it has none."""
    margin: float = 0.0
    """How much larger the score of the chosen reply should be; 0 if the row has none."""
    steps: tuple[LabelledStep, ...] = ()
    """Of a single reply with labelled steps."""
    source: str = ""
    """The row's `source` if that is text, by which accuracy is also measured; else empty."""

    @property
    def fault(self) -> str:
        """Why nothing can be learned from it; empty if something can."""
        texts = [message_text(reply).strip() for reply in self.replies]
        names = ("chosen", "rejected") if len(texts) == 2 else ("only",)
        if empty := [name for name, text in zip(names, texts, strict=True) if not text]:
            return f"the {empty[0]} response is empty"
        if self.tied:
            return "all ratings are the same"
        return "the chosen and the rejected response are equal" if len(texts) == 2 and texts[0] == texts[1] else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How rows are read."""

    ratings: Ratings | None = None
    """The range of ratings; None: they are errors."""
    separate: bool = False
    """Whether each of several rated replies is read alone, instead of the best against the worst."""
    separator: str = "\n"
    """Text that ends each step of a reply but the last."""


def jsonl(path: str, reading: Reading | None = None, first: int | None = None) -> list[Preference]:
    """The preferences of a `.jsonl` or `.jsonl.gz` file; see the forms of rows in the guide.

    A row with ratings needs their range. With `first`, only so many rows are read.
    """
    file, how = Path(path), reading or Reading()

    def parse(number: int, value: Any) -> list[Preference]:
        return preferences_from(value, how, where=f"{file}:{number}")

    rows = islice(numbered_objects(file), first)
    parsed = parse_rows(rows, parse, where=str(file), empty="no preferences in it; put one object in each line")
    return [preference for row in parsed for preference in row]


def preferences_from(value: Any, reading: Reading, *, where: str) -> list[Preference]:
    """The preferences of a row: one, or one per rated reply; ValueError with the fault and its remedy."""
    row = openai_row(parse_object(value))
    source = row.get("source")
    named = source if isinstance(source, str) else ""
    return [replace(each, source=named) for each in _preferences(row, reading, where)]


def _preferences(row: dict[str, Any], reading: Reading, where: str) -> list[Preference]:
    if "responses" in row:
        return _rated_replies(row, reading, where)
    if "chosen" not in row and any(name in row for name in ("labels", *_STEPS)):
        return [_labelled_steps(row, reading.separator, where)]
    single = [name for name in _SINGLE if row.get(name) is not None]
    if single:
        prompt, reply = _prompt(row), _turns(row[single[0]], single[0])
        messages, last = _after_prompt(prompt, reply, single[0])
        desirable, rating = _label(row, reading.ratings)
        return [Preference(where=where, messages=messages, replies=(last,), desirable=desirable, rating=rating)]
    if missing := [name for name in ("chosen", "rejected") if row.get(name) is None]:
        raise ValueError(f"no {missing[0]!r}; add it, or write a single reply as 'response' with a 'label'")
    chosen, rejected = (_turns(row[name], name) for name in ("chosen", "rejected"))
    prompt = _prompt(row)
    if not prompt:
        prompt, chosen, rejected = _common_prompt(chosen, rejected)
    pairs = [_after_prompt(prompt, turns, name) for turns, name in ((chosen, "chosen"), (rejected, "rejected"))]
    (messages, best), (others, worst) = pairs
    if messages != others:
        raise ValueError("chosen and rejected answer different prompts; give both the same messages before the last")
    return [Preference(where=where, messages=messages, replies=(best, worst), margin=_margin(row))]


def _margin(row: dict[str, Any]) -> float:
    margin: Any = row.get("margin", 0.0)
    if isinstance(margin, bool) or not isinstance(margin, int | float) or not math.isfinite(margin) or margin < 0:
        raise ValueError(f"'margin' must be a number from 0 on (got {margin!r}); correct it, or leave it out")
    return float(margin)


def _labelled_steps(row: dict[str, Any], separator: str, where: str) -> Preference:
    """A reply with a label per step; its steps are listed, or found by the separator."""
    texts, labels = _step_texts(row, separator), row.get("labels")
    if not isinstance(labels, list):
        raise ValueError(f"'labels' must be a list (got {labels!r}); write one label per step")
    values = [_step_label(each) for each in cast(list[Any], labels)]
    if len(values) != len(texts):
        raise ValueError(f"{len(values)} labels for {len(texts)} steps; write one label per step")
    ends = list(accumulate(map(len, texts)))
    prompt, reply = _prompt(row), Message("assistant", "".join(texts))
    messages, last = _after_prompt(prompt, (reply,), "steps")
    steps = tuple(LabelledStep(end=end, label=value) for end, value in zip(ends, values, strict=True))
    return Preference(where=where, messages=messages, replies=(last,), steps=steps)


def _step_texts(row: dict[str, Any], separator: str) -> list[str]:
    """The texts of the steps, each but the last with the separator after it."""
    single = [name for name in _SINGLE if row.get(name) is not None]
    listed = [name for name in _STEPS if row.get(name) is not None]
    if len(single) + len(listed) != 1:
        raise ValueError("'labels' need either 'steps' or 'response'; write one of them")
    value: Any = row[(single + listed)[0]]
    parts: list[Any] = cast(list[Any], value) if listed and isinstance(value, list) else []
    if single and isinstance(value, str):
        parts = value.removesuffix(separator).split(separator)
    if not parts or not all(isinstance(each, str) for each in parts):
        raise ValueError(f"{(single + listed)[0]!r} must be {'a list of texts' if listed else 'text'}; correct it")
    if empty := [number for number, each in enumerate(parts, 1) if not each.strip()]:
        raise ValueError(f"step {empty[0]} is empty; remove it")
    return [each if index == len(parts) - 1 else each + separator for index, each in enumerate(parts)]


def _step_label(value: Any) -> float:
    if not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError(f"the label of a step must be true, false or from 0 to 1 (got {value!r}); correct it")
    return float(value)


def labelled_of(preferences: Iterable[Preference]) -> list[Preference]:
    """Single replies with labels: a pair becomes a desirable and an undesirable reply."""
    return [
        preference
        if len(preference.replies) == 1
        else replace(preference, replies=(reply,), desirable=good, margin=0.0)
        for preference in preferences
        for reply, good in zip(preference.replies, (True, False), strict=False)
    ]


def _rated_replies(row: dict[str, Any], reading: Reading, where: str) -> list[Preference]:
    """The best reply against the worst, the first of several that are equally good; or each reply with its rating."""
    replies, values = row["responses"], row.get("ratings")
    if not isinstance(replies, list) or not isinstance(values, list):
        raise ValueError("'responses' and 'ratings' must be lists; write one rating per response")
    entries, numbers = cast(list[Any], replies), [_rating(each, reading.ratings) for each in cast(list[Any], values)]
    if len(entries) != len(numbers) or len(entries) < 2:
        raise ValueError(
            f"{len(entries)} responses and {len(numbers)} ratings; write two responses or more, and a rating for each"
        )
    prompt = _prompt(row)
    sides = [_after_prompt(prompt, _turns(each, "responses"), "responses") for each in entries]
    if reading.separate:
        return [
            Preference(
                where=where,
                messages=messages,
                replies=(reply,),
                desirable=_good(rating, reading.ratings),
                rating=rating,
            )
            for (messages, reply), rating in zip(sides, numbers, strict=True)
        ]
    best, worst = numbers.index(max(numbers)), numbers.index(min(numbers))
    return [
        Preference(where=where, messages=sides[0][0], replies=(sides[best][1], sides[worst][1]), tied=best == worst),
    ]


def _label(row: dict[str, Any], ratings: Ratings | None) -> tuple[bool | None, float | None]:
    """The label of a single reply, and its rating; one of the two may be None."""
    label, rating = row.get("label"), row.get("rating")
    if (label is None) == (rating is None):
        raise ValueError("a single reply needs either 'label' or 'rating'; add one of them")
    if rating is not None:
        value = _rating(rating, ratings)
        return _good(value, ratings), value
    if not isinstance(label, bool):
        raise ValueError(f"'label' must be true or false (got {label!r}); correct it")
    return label, None


def _good(rating: float, ratings: Ratings | None) -> bool | None:
    """The label that a rating gives; None if no rating does."""
    assert ratings is not None, "without a range every rating is refused"
    return None if ratings.desirable is None else rating >= ratings.desirable


def _rating(value: Any, ratings: Ratings | None) -> float:
    if ratings is None:
        raise ValueError(
            "has ratings, and their range is unknown; set `ratings` of the section, such as {lowest: 1, highest: 5}"
        )
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"a rating is not a number (got {value!r}); write one")
    if not ratings.lowest <= value <= ratings.highest:
        raise ValueError(
            f"a rating outside of `ratings`, {ratings.lowest:g} to {ratings.highest:g} (got {value:g}); correct it"
        )
    return float(value)


def _prompt(row: dict[str, Any]) -> Turns:
    """The prompt of a row, which ends with the user or a tool; empty if the row has none."""
    names = [name for name in ("prompt", "messages") if row.get(name) is not None]
    if len(names) == 2:
        raise ValueError("both 'prompt' and 'messages'; keep one of them")
    if not names:
        return ()
    value = row[names[0]]
    turns = (Message("user", value),) if isinstance(value, str) else _turns(value, names[0])
    if not turns or not message_text(turns[-1]).strip():
        raise ValueError(f"{names[0]!r} is empty; write the prompt, or leave it out if replies are whole chats")
    if turns[-1].role == "assistant":
        raise ValueError(f"{names[0]!r} ends with the assistant; end it with the message that is answered")
    return turns


def _turns(value: Any, name: str) -> Turns:
    """A reply, or a chat, as messages: text is the assistant's, unless it is a transcript."""
    if isinstance(value, str):
        return _transcript(value) or (Message("assistant", value),)
    if isinstance(value, dict):
        return (parse_message(cast(Any, value)),)
    if not isinstance(value, list) or not value:
        raise ValueError(f"{name!r} must be text, a message or a list of messages (got {value!r}); correct it")
    return tuple(parse_message(entry) for entry in cast(list[Any], value))


def _transcript(text: str) -> Turns:
    """The messages of a text with turns of `Human:` and `Assistant:`; empty if it has none."""
    before, *parts = _SPEAKER.split(text)
    if before.strip() or not parts:
        return ()
    pairs = zip(parts[::2], parts[1::2], strict=True)
    return tuple(Message(_ROLES[role], content.strip()) for role, content in pairs)


def _common_prompt(chosen: Turns, rejected: Turns) -> tuple[Turns, Turns, Turns]:
    """The prompt that two chats have in common; of two texts, their common words are the user's."""
    (*before, best), (*others, worst) = chosen, rejected
    if before or others:
        return tuple(before), chosen, rejected
    first, second = message_text(best), message_text(worst)
    length = next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )
    cut = max(first.rfind(space, 0, length) for space in " \n\t") + 1
    if not first[:cut].strip():
        raise ValueError("no 'prompt', and chosen and rejected do not begin alike; add the prompt")
    sides = [(Message("assistant", text[cut:]),) for text in (first, second)]
    return (Message("user", first[:cut].rstrip()),), sides[0], sides[1]


def _after_prompt(prompt: Turns, turns: Turns, name: str) -> tuple[Turns, Message]:
    """The prompt, and the reply to it; a chat repeats the prompt or is only the reply."""
    *before, reply = turns
    if reply.role != "assistant":
        raise ValueError(f"{name!r} ends with a message of {reply.role!r}; end it with the assistant's")
    if not prompt and not before:
        raise ValueError("neither 'prompt' nor 'messages'; add one of them")
    if prompt and before and tuple(before) != prompt:
        raise ValueError(f"{name!r} begins with other messages than the prompt; leave them out, or correct them")
    return prompt or tuple(before), reply
