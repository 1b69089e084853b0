"""Whether an answer is the one that is wanted, by AgentBench's rules for DBBench.

- Values are compared as text, without spaces, quotes and percent signs at their ends, and without commas.
- Nothing, `none`, `null`, `undefined`, `nan`, the infinities and the empty text are 0.
- Numbers are the same within 0.01. Several numbers are compared one by one whatever their order; several values that
  are not all numbers are compared as sets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

_TOLERANCE = 0.01 + 1e-9  # and what binary fractions leave
_NOTHING = frozenset({"none", "null", "undefined", "nan", "inf", "infinity", "-inf", "-infinity", ""})


def same_answer(given: Sequence[Any], wanted: Sequence[Any]) -> bool:
    """Whether the given values are the wanted ones; no value at all is the value nothing."""
    ours, theirs = ([_plain(value) for value in values or [None]] for values in (given, wanted))
    numbers, others = ([_number(text) for text in texts] for texts in (ours, theirs))
    known = [number for number in numbers if number is not None]
    meant = [number for number in others if number is not None]
    if len(known) == len(ours) and len(meant) == len(theirs):
        pairs = zip(sorted(known), sorted(meant), strict=False)
        return len(known) == len(meant) and all(abs(one - other) <= _TOLERANCE for one, other in pairs)
    return set(ours) == set(theirs)


def _plain(value: Any) -> str:
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
