"""The form of the key table: one row per key of ROLL, with its effect on the run file."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from roll.commands.importing.outcome import Status
from roll.commands.importing.source import MISSING, Source

Reason = Callable[[Source], str]
"""Why a key has no effect; empty if it has one."""


@dataclass(frozen=True, slots=True)
class Effect:
    """What a key does to the run file."""

    status: Status
    values: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Our keys and their values."""
    note: str = ""
    becomes: tuple[str, ...] = ()
    """Our keys that hold the value, where a builder writes them."""


Convert = Callable[[Source, str, Any], Effect]
"""From the source, the full key and its value."""


@dataclass(frozen=True, slots=True)
class Row:
    """A key of ROLL. In a key, `*` matches one part, and `**` the rest."""

    key: str
    convert: Convert
    default: Any = MISSING
    """ROLL's value where the file has none, if it differs from ours."""


def renamed(key: str, ours: str, note: str = "") -> Status:
    """Status of a key whose value is in `ours`; with a note, its meaning differs."""
    same_name = key.rpartition(".")[2] == ours.rpartition(".")[2]
    return Status.DIFFERS if note else Status.TAKEN if same_name else Status.RENAMED


def goes_to(key: str, ours: str, note: str = "") -> Effect:
    """The effect of a key whose value a builder writes."""
    return Effect(renamed(key, ours, note), {}, note, (ours,))


def unsupported(reason: str) -> Effect:
    """The effect of a key without counterpart."""
    return Effect(Status.UNSUPPORTED, {}, reason)


def unused(reason: str) -> Effect:
    """The effect of a key that another key makes irrelevant."""
    return Effect(Status.UNUSED, {}, reason)


def take(key: str, ours: str, *, default: Any = MISSING, note: str = "") -> Row:
    """The value is written to our key unchanged."""
    return Row(key, lambda _source, key, value: Effect(renamed(key, ours, note), {ours: value}, note), default)


def into(  # noqa: PLR0913 - one parameter per column of the table
    key: str,
    ours: str,
    *,
    default: Any = MISSING,
    note: str = "",
    when: str = "",
    only: tuple[str, ...] = (),
    unless: Reason = lambda _: "",
) -> Row:
    """A builder reads the value and writes `ours`.

    It has an effect only if the key `when` is true, the estimator is one of `only`, and `unless` gives no reason.
    """

    def convert(source: Source, key: str, value: Any) -> Effect:
        if when and not source.get(when):
            return unused(f"{when} is not set")
        if only and source.get("adv_estimator") not in only:
            return unused(f"only for adv_estimator {' and '.join(only)}")
        if reason := unless(source):
            return unused(reason)
        return Effect(Status.DEFAULT) if value is None or value is False else goes_to(key, ours, note)

    return Row(key, convert, default)


def same(note: str, *keys: str) -> tuple[Row, ...]:
    """Keys that need no setting here."""
    return tuple(Row(key, lambda _source, _key, _value: Effect(Status.DEFAULT, {}, note)) for key in keys)


def refuse(reason: str, *keys: str) -> tuple[Row, ...]:
    """Keys that have no counterpart here."""
    return tuple(Row(key, lambda _source, _key, _value: unsupported(reason)) for key in keys)


def neutral(reason: str, *keys: str, values: tuple[Any, ...] = (None, False, 0)) -> tuple[Row, ...]:
    """Keys that are the default here at one of `values`, and not supported at others."""

    def convert(_source: Source, _key: str, value: Any) -> Effect:
        return Effect(Status.DEFAULT) if value in values or value in ({}, []) else unsupported(reason)

    return tuple(Row(key, convert) for key in keys)


class KeyTable:
    """Rows by key."""

    def __init__(self, *rows: Row) -> None:
        self.exact = {row.key: row for row in rows if "*" not in row.key}
        assert len(self.exact) == sum("*" not in row.key for row in rows), "a key has two rows"
        patterns = sorted((row for row in rows if "*" in row.key), key=lambda row: "**" in row.key)
        self._patterns = [(_compile(row.key), row) for row in patterns]
        self.defaults = {key: row.default for key, row in self.exact.items() if row.default is not MISSING}

    def find(self, key: str) -> Row | None:
        """The row of a key: its own, else the first that matches, with those of the form `**` last."""
        matching = (row for pattern, row in self._patterns if pattern.fullmatch(key))
        return self.exact.get(key) or next(matching, None)


def _compile(key: str) -> re.Pattern[str]:
    return re.compile(re.escape(key).replace(r"\*\*", ".+").replace(r"\*", "[^.]+"), re.DOTALL)
