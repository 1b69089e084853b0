"""Preferences as rows of ids for a reward model, with the positions at which its score is read.

A reward model reads the state after a token: after the last token of a response, or after the last token of each step.
Imports no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from roll.config.preferences import RewardTraining
from roll.data.codec import last_tokens
from roll.data.preference_rows import (
    DroppedRow,
    Row,
    check_labelled,
    encode_reply,
    fitting,
    without_faults,
)
from roll.data.preferences import Preference, Reading, labelled_of
from roll.data.templates import Template
from roll.errors import ConfigError

_FORMS = {
    "pairs": "pairs: write chosen and rejected",
    "ratings": "ratings: write response and rating",
    "labels": "labels: write response and label",
    "steps": "labels of steps: write steps and labels",
}
"""What rows of each form have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardExample:
    """One example, encoded: a pair, chosen first, or a single response."""

    where: str
    rows: tuple[Row, ...]
    ends: tuple[tuple[int, ...], ...]
    """Per row the tokens after which the score is read, counted from the start of the row."""
    targets: tuple[float, ...] = ()
    """One per position of a single response; empty for a pair."""
    margin: float = 0.0
    source: str = ""


def reading_of(section: RewardTraining) -> Reading:
    """How the rows of the section are read."""
    separate = section.form in ("ratings", "labels")
    return Reading(ratings=section.ratings, separate=separate, separator=section.step_separator)


def useful_for_rewards(
    section: RewardTraining, preferences: Sequence[Preference]
) -> tuple[list[Preference], list[DroppedRow]]:
    """The preferences that fit the loss and from which something can be learned, and the others.

    Raises `ConfigError` for the others unless the section drops them.
    """
    unfit = [each.where for each in preferences if not _fits(section, each)]
    if unfit:
        raise ConfigError(
            f"{unfit[0]}: another kind of row, and loss {section.loss.kind!r} reads {_FORMS[section.form]}, "
            "or set another reward_training.loss"
        )
    usable, dropped = without_faults(section, preferences)
    if section.form != "labels":
        return usable, dropped
    labelled = labelled_of(usable)
    check_labelled(section, labelled)
    return labelled, dropped


def encode_rewards(
    section: RewardTraining, preferences: Sequence[Preference], *, template: Template, max_seq_len: int
) -> tuple[list[RewardExample], list[DroppedRow]]:
    """The examples, and the preferences that are not used; see `useful_for_rewards`."""
    usable, dropped = useful_for_rewards(section, preferences)
    encoded = [[encode_reply(template, each, reply) for reply in each.replies] for each in usable]
    fits, long = fitting(section, usable, encoded, max_seq_len)
    return [_example(section, template, each, rows) for each, rows in fits], [*dropped, *long]


def _fits(section: RewardTraining, preference: Preference) -> bool:
    pair, stepped = len(preference.replies) == 2, bool(preference.steps)
    if section.form == "pairs":
        return pair
    if section.form == "ratings":
        return preference.rating is not None
    return stepped if section.form == "steps" else not stepped


def _example(section: RewardTraining, template: Template, preference: Preference, rows: list[Row]) -> RewardExample:
    ends = [(sum(map(len, row)) - 1,) for row in rows]
    targets: tuple[float, ...] = ()
    if section.form == "ratings":
        assert section.ratings is not None and preference.rating is not None, "checked before"
        lowest, highest = section.ratings.lowest, section.ratings.highest
        targets = ((preference.rating - lowest) / (highest - lowest),)
    elif section.form == "labels":
        targets = (float(bool(preference.desirable)),)
    elif section.form == "steps":
        ends = [_step_ends(template, preference, rows[0])]
        targets = tuple(step.label for step in preference.steps)
    return RewardExample(
        where=preference.where,
        rows=tuple(rows),
        ends=tuple(ends),
        targets=targets,
        margin=preference.margin,
        source=preference.source,
    )


def _step_ends(template: Template, preference: Preference, row: Row) -> tuple[int, ...]:
    """The token that completes each step; of the last step, the end token of the response."""
    context, response = row
    text = preference.replies[0].content
    if not template.decode(response).startswith(text):
        raise ConfigError(
            f"{preference.where}: the template or the tokenizer changes the response, so that its steps cannot be "
            "found; set model.template: plain, or write the response as it is rendered"
        )
    inner = last_tokens(template.decode, np.array(response, np.int32), [step.end for step in preference.steps[:-1]])
    ends = [*(len(context) + index for index in inner), len(context) + len(response) - 1]
    if len(set(ends)) != len(ends):
        raise ConfigError(f"{preference.where}: two steps end in one token; write a longer step_separator between them")
    return tuple(ends)
