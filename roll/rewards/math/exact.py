"""Exact comparison of answers as text, words and numbers; it decides only where it is certain.

Nothing is evaluated: answers are matched against fixed patterns of bounded size, so no answer is expensive.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from fractions import Fraction

_MAX_CHARS = 200
"""Longer answers are compared verbatim; also bounds the size of every number."""
_ROUNDING = Fraction(2, 10**6)
"""Relative distance within which a decimal may be a rounded fraction."""
_YES_NO = frozenset({"yes", "no", "true", "false"})
_NOT_UNITS = (
    "pi|or|and|mod|over|times|plus|minus|squared|cubed|dozen|hundred|thousand|million|billion|percent|infinity|inf"
)
"""Words after a number that change its value."""
_UNIT = rf"(?!(?:{_NOT_UNITS})\b)[A-Za-z]{{2,20}}"

_SIGNS = str.maketrans({"\u2212": "-", "\u2013": "-", "π": r"\pi ", "∞": r"\infty ", "\xd7": r"\times ", "\xa0": " "})
_REWRITES = [
    (sign, re.compile(pattern), replacement)
    for sign, pattern, replacement in (
        ("", r"\s+", " "),
        ("\\", r"\\[dtc]frac(?![a-z])", r"\\frac"),
        ("", r"\\(?:left|right|displaystyle|quad)(?![a-z])|\\[!,;: ]|\\[()\[\]]|~|\\?[$€£]|\*\*", ""),
        ("\\", r"(?<=[\d}]) ?\\(?:text|mathrm)\{[^{}]*\}(?:\^(?:\d|\{\d\}))?[. ]*$", ""),  # a unit
        (" ", rf"(?<=\d) {_UNIT}(?: {_UNIT}){{0,3}}[. ]*$", ""),  # another
        ("\\", r"\\(?:text|textbf|mathrm|mathbf|mathit|operatorname)\{([^{}]*)\}", r"\1"),
        ("", r"\^ ?(?:\\circ|\{ ?\\circ ?\})|°|(?<=\d) ?degrees?\b", ""),
        ("\\", r"\\%", "%"),
        ("{", r"\{,\}", ","),
        (" ", r" (?!\d)|(?<!\d) ", ""),  # a space between digits is significant
        ("\\", r"\\frac(\d)", r"\\frac{\1}"),
        ("\\", r"(\\frac\{[^{}]*\}) ?(\d)", r"\1{\2}"),
        ("\\", r"\\sqrt(\d)", r"\\sqrt{\1}"),
        ("", r"[.,]+$", ""),
        ("{", r"^\{([^{}\\]*)\}$", r"\1"),
    )
]
"""(character, pattern, replacement): applied if the character occurs, which skips most patterns for plain answers."""
_PLAIN = re.compile(r"-?\d+(?:\.\d+)?")
_GROUPED = re.compile(r"[+-]?\d{1,3}(?:(?:,\d{3})+|(?: \d{3})+)(?:\.\d*)?%?")
_DECIMAL = r"\d+(?:\.\d*)?|\.\d+"
_VALUE = re.compile(
    rf"(?:(?P<name>[A-Za-z])=)?(?P<sign>[+-]?)(?:"
    rf"(?:(?P<mixed>\d+) (?=\d+/))?(?P<top>{_DECIMAL})(?:/(?P<bottom>\d+))?"
    rf"|(?P<whole>\d*)\\frac\{{(?P<inner>[+-]?)(?P<over>{_DECIMAL})\}}\{{(?P<under>{_DECIMAL})\}}"
    rf")(?P<percent>%?)"
)
_WORDS = re.compile(r"[A-Za-z ,.!?'-]*")


@dataclass(frozen=True, slots=True)
class _Number:
    """The value of a plainly written number."""

    readings: tuple[Fraction, ...]
    """The value; for a percentage also its hundredth."""
    name: str
    """The variable it is assigned to, if any."""
    fraction: bool
    """Not written as a decimal."""


def same(gold: str, answer: str) -> bool | None:
    """Whether two answers are equal; None if that takes algebra."""
    one, other = _normalise_cached(gold), normalise(answer)
    if one == other or not other:
        return bool(one and other)
    same_words = _same_words(one, other)
    if same_words is not None:
        return same_words
    number, another = _parse_number_cached(one), _parse_number(other)
    if number is None:
        return None
    if another is None:
        words = _WORDS.fullmatch(answer) and len(other) > 2 and other.casefold() not in _NOT_UNITS.split("|")
        return False if words else None
    return _same_numbers(number, another)


def normalise(answer: str) -> str:
    """The answer without markup, units and spaces; equal texts are equal answers."""
    if len(answer) > _MAX_CHARS or _PLAIN.fullmatch(answer):
        return answer.strip()
    answer = answer.translate(_SIGNS)
    for sign, pattern, replacement in _REWRITES:
        if sign in answer:
            answer = pattern.sub(replacement, answer)
    return answer.replace(",", "").replace(" ", "") if _GROUPED.fullmatch(answer) else answer


def _same_words(one: str, other: str) -> bool | None:
    if not (one.isalpha() and other.isalpha()):
        return None
    if len(one) == len(other) == 1:
        return False  # n and N differ, which math-verify ignores
    if one.casefold() in _YES_NO or (len(one) > 2 and one.casefold() == other.casefold()):
        return one.casefold() == other.casefold()
    return None


def _same_numbers(one: _Number, other: _Number) -> bool | None:
    if one.name and other.name and one.name != other.name:
        return None
    if any(left == right for left in one.readings for right in other.readings):
        return True
    left, right = one.readings[0], other.readings[0]
    rounded = one.fraction != other.fraction and abs(left - right) <= _ROUNDING * max(abs(left), abs(right))
    return None if rounded else False


def _parse_number(answer: str) -> _Number | None:
    """The exact value of an integer, decimal, fraction or mixed number; None for anything else."""
    match = _VALUE.fullmatch(answer) if len(answer) <= _MAX_CHARS else None
    if match is None:
        return None
    top, bottom = match["top"] or match["over"], match["bottom"] or match["under"] or "1"
    if not Fraction(bottom):
        return None
    value = Fraction(top) / Fraction(bottom)
    value = Fraction(match["whole"] or match["mixed"] or 0) + (-value if match["inner"] == "-" else value)
    value = -value if match["sign"] == "-" else value
    readings = (value, value / 100) if match["percent"] else (value,)
    return _Number(readings, match["name"] or "", fraction="." not in answer and bottom != "1")


_normalise_cached = functools.lru_cache(maxsize=1024)(normalise)  # a whole group shares the gold answer
_parse_number_cached = functools.lru_cache(maxsize=1024)(_parse_number)
