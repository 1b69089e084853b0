"""Reference answers: conversion of statements from MySQL, and AgentBench's rules for DBBench to compare answers.

In MySQL a backslash in a string escapes the next character, and double quotes delimit strings; in SQLite a backslash
is literal, and double quotes delimit names.

- Values are compared as text, without surrounding spaces, quotes and percent signs, and without commas.
- Nothing, `none`, `null`, `undefined`, `nan`, the infinities and the empty text are 0.
- Numbers are equal within 0.01. Several numbers are compared pairwise after sorting; other lists are compared as sets.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

_TOLERANCE = 0.01 + 1e-9  # with a margin for binary fractions
_NOTHING = frozenset({"none", "null", "undefined", "nan", "inf", "infinity", "-inf", "-infinity", ""})
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "b": "\b", "Z": "\x1a"}
_QUOTED = re.compile(r"`(?:[^`]|``)*`|'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.|\"\")*\"", re.DOTALL)


def to_sqlite(statement: str) -> str:
    """The MySQL statement with SQLite string literals; names in backticks mean the same in both."""
    return _QUOTED.sub(lambda match: _convert_quoted(match[0]), statement)


def same_answer(actual: Sequence[Any], expected: Sequence[Any]) -> bool:
    """Whether the values match the expected ones; an empty list counts as one null."""
    ours, theirs = ([_normalise(value) for value in values or [None]] for values in (actual, expected))
    numbers, others = _sorted_numbers(ours), _sorted_numbers(theirs)
    if numbers is None or others is None:
        return set(ours) == set(theirs)
    pairs = zip(numbers, others, strict=False)
    return len(numbers) == len(others) and all(abs(one - other) <= _TOLERANCE for one, other in pairs)


def _convert_quoted(quoted: str) -> str:
    mark = quoted[0]
    if mark == "`":
        return quoted
    plain = re.sub(
        r"\\(.)", lambda match: _ESCAPED.get(match[1], match[1]), quoted[1:-1].replace(mark * 2, mark), flags=re.DOTALL
    )
    return "'" + plain.replace("'", "''") + "'"


def _normalise(value: Any) -> str:
    if value is None:
        return "0"
    text = str(value).strip().strip("'\"")
    text = text.removesuffix("%").strip() if text.endswith("%") else text.replace(",", "")
    return "0" if text.lower() in _NOTHING else text


def _sorted_numbers(texts: Sequence[str]) -> list[float] | None:
    """The texts as finite numbers; None if one is something else."""
    try:
        numbers = sorted(float(text) for text in texts)
    except ValueError:
        return None
    return numbers if all(map(math.isfinite, numbers)) and "_" not in "".join(texts) else None
