"""Preferences as rows of ids: two sequences per example. Rows from which nothing can be learned are errors or dropped.

A pair has the chosen and the rejected response. A labelled response has a second sequence with the response of the next
example, which answers another prompt: a loss of single responses measures its baseline on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from roll.config.preferences import Dpo, PreferenceSection
from roll.config.section import SpecConfig
from roll.data.chat_rows import chat_row
from roll.data.preferences import Preference, Reading, labelled_of
from roll.data.templates import Template
from roll.errors import ConfigError, RollError, describe_error, source_of
from roll.registry import PREFERENCE_DATASETS
from roll.types import Message

Row: TypeAlias = list[list[int]]
"""Ids of a context and of a response to it."""
_MOST_FAULTS = 10
"""Faulty rows that an error lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceExample:
    """One example, encoded."""

    where: str
    rows: tuple[Row, Row]
    desirable: bool | None = None
    """Label of the first row; None for a pair, whose first row is the chosen one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedRow:
    """A row from which nothing can be learned."""

    where: str
    """File and line."""
    reason: str


def read_preferences(key: str, data: SpecConfig, reading: Reading, *, first: int | None = None) -> list[Preference]:
    """The preferences of a section `data`, whose key is for errors. With `first`, only so many rows of a file."""
    kwargs = dict(data.kwargs)
    if data.kind == "jsonl":
        kwargs |= {"reading": reading} | ({} if first is None else {"first": first})
    if ":" not in data.kind:
        return PREFERENCE_DATASETS[data.kind](**kwargs)  # an exception in one of ours is a bug
    where, function = f"{key}: {data.kind!r}", cast(Any, None)
    try:
        function = PREFERENCE_DATASETS[data.kind]
        preferences: list[Any] = list(function(**kwargs))
    except RollError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{where}: {describe_error(error, source_of(function))}; fix its code") from error
    wrong = [type(each).__name__ for each in preferences if not isinstance(each, Preference)]
    if wrong or not preferences:
        got = wrong[0] if wrong else "nothing"
        raise ConfigError(f"{where}: must return records of type Preference (got {got}); fix its code")
    return preferences


def useful(dpo: Dpo, preferences: Sequence[Preference]) -> tuple[list[Preference], list[DroppedRow]]:
    """The preferences that fit the loss and from which something can be learned, and the others.

    Raises `ConfigError` for the others unless the section drops them.
    """
    single = [preference.where for preference in preferences if len(preference.replies) == 1]
    if single and not dpo.unpaired:
        raise ConfigError(
            f"{single[0]}: a single response, and loss {dpo.loss.kind!r} compares two; "
            "write chosen and rejected, or set dpo.loss to kto"
        )
    usable, dropped = without_faults(dpo, preferences)
    if not dpo.unpaired:
        return usable, dropped
    labelled = labelled_of(usable)
    check_labelled(dpo, labelled)
    return labelled, dropped


def check_labelled(section: PreferenceSection, labelled: Sequence[Preference]) -> None:
    """Raise `ConfigError` for a single response without a label."""
    if unlabelled := [each.where for each in labelled if each.desirable is None]:
        key = f"{section.key}.ratings.desirable"
        raise ConfigError(f"{unlabelled[0]}: no label; set {key}, from which on a rating is a good one")


def without_faults(
    section: PreferenceSection, preferences: Sequence[Preference]
) -> tuple[list[Preference], list[DroppedRow]]:
    """The preferences from which something can be learned, and the others."""
    dropped = [DroppedRow(where=each.where, reason=each.fault) for each in preferences if each.fault]
    _check_dropped(section, dropped)
    return [each for each in preferences if not each.fault], dropped


def encode_preferences(
    dpo: Dpo, preferences: Sequence[Preference], *, template: Template, max_seq_len: int
) -> tuple[list[PreferenceExample], list[DroppedRow]]:
    """The examples, and the preferences that are not used; see `useful`."""
    usable, dropped = useful(dpo, preferences)
    encoded = [[encode_reply(template, each, reply) for reply in each.replies] for each in usable]
    fits, long = fitting(dpo, usable, encoded, max_seq_len)
    if dpo.unpaired:
        return _with_other_responses(fits, max_seq_len), [*dropped, *long]
    examples = [PreferenceExample(where=each.where, rows=(rows[0], rows[1])) for each, rows in fits]
    return examples, [*dropped, *long]


def fitting(
    section: PreferenceSection, usable: Sequence[Preference], encoded: Sequence[list[Row]], max_seq_len: int
) -> tuple[list[tuple[Preference, list[Row]]], list[DroppedRow]]:
    """The preferences with their rows, of which none is too long, and the others."""
    lengths = [max(sum(map(len, row)) for row in rows) for rows in encoded]
    long = [
        DroppedRow(where=each.where, reason=f"{length} tokens exceed rollout.max_seq_len {max_seq_len}")
        for each, length in zip(usable, lengths, strict=True)
        if length > max_seq_len
    ]
    _check_dropped(section, long)
    rows_of = zip(usable, encoded, lengths, strict=True)
    return [(each, rows) for each, rows, length in rows_of if length <= max_seq_len], long


def encode_reply(template: Template, preference: Preference, reply: Message) -> Row:
    """The ids of the prompt, and of a reply to it."""
    return chat_row(template, (*preference.messages, reply), every=False, where=preference.where)


def _with_other_responses(fits: Sequence[tuple[Preference, list[Row]]], max_seq_len: int) -> list[PreferenceExample]:
    """Labelled examples with the response of the next example to another prompt, cut where it is too long."""
    examples: list[PreferenceExample] = []
    for index, (preference, rows) in enumerate(fits):
        context, _ = row = rows[0]
        others = (fits[(index + more) % len(fits)] for more in range(1, len(fits)))
        other = next((rows[0][1] for each, rows in others if each.messages != preference.messages), None)
        if other is None:
            raise ConfigError(
                f"{preference.where}: all examples have the same prompt, and the baseline of the loss is measured on "
                "responses to other prompts; add some"
            )
        mismatched = [context, other[: max(1, max_seq_len - len(context))]]
        examples.append(
            PreferenceExample(where=preference.where, rows=(row, mismatched), desirable=preference.desirable)
        )
    return examples


def _check_dropped(section: PreferenceSection, dropped: Sequence[DroppedRow]) -> None:
    """Raise `ConfigError` for these rows, unless the section drops them."""
    if not dropped or section.faulty_rows == "drop":
        return
    remedy = f"or set {section.key}.faulty_rows to drop"
    lines = [f"{each.where}: {each.reason}; correct it, {remedy}" for each in dropped]
    rest = len(lines) - _MOST_FAULTS
    more = [f"{rest} more such rows; correct them, {remedy}"] if rest > 0 else []
    raise ConfigError("\n".join([*lines[:_MOST_FAULTS], *more]))
