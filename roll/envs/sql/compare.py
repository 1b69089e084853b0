"""Compare an answer with the expected one by AgentBench's rules for DBBench.

- Values are compared as text, without surrounding spaces, quotes and percent signs, and without commas.
- Nothing, `none`, `null`, `undefined`, `nan`, the infinities and the empty text are 0.
- Numbers are equal within 0.01. Several numbers are compared pairwise after sorting; other lists are compared as sets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

_TOLERANCE = 0.01 + 1e-9  # with a margin for binary fractions
_NOTHING = frozenset({"none", "null", "undefined", "nan", "inf", "infinity", "-inf", "-infinity", ""})


def same_answer(actual: Sequence[Any], expected: Sequence[Any]) -> bool:
    """Whether the values match the expected ones; an empty list counts as one null."""
    ours, theirs = ([_normalise(value) for value in values or [None]] for values in (actual, expected))
    numbers, others = ([_number(text) for text in texts] for texts in (ours, theirs))
    actual_numbers = [number for number in numbers if number is not None]
    expected_numbers = [number for number in others if number is not None]
    if len(actual_numbers) == len(ours) and len(expected_numbers) == len(theirs):
        pairs = zip(sorted(actual_numbers), sorted(expected_numbers), strict=False)
        return len(actual_numbers) == len(expected_numbers) and all(
            abs(one - other) <= _TOLERANCE for one, other in pairs
        )
    return set(ours) == set(theirs)


def _normalise(value: Any) -> str:
    if value is None:
        return "0"
    text = str(value).strip().strip("'\"")
    text = text.removesuffix("%").strip() if text.endswith("%") else text.replace(",", "")
    return "0" if text.lower() in _NOTHING else text


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and "_" not in text else None
