"""Two answers compared as text, words and exact numbers: certain where it decides, and silent where it takes algebra.

Nothing is evaluated: answers are matched against fixed patterns of bounded size, so none can be expensive.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from fractions import Fraction

_LONGEST = 200
"""Characters beyond which an answer is compared as it stands; also bounds the size of every number."""
_NEAR = Fraction(2, 10**6)
"""A decimal this near to a fraction, in proportion, may be meant for it."""
_VERDICTS = frozenset({"yes", "no", "true", "false"})
_NO_UNIT = (
    "pi|or|and|mod|over|times|plus|minus|squared|cubed|dozen|hundred|thousand|million|billion|percent|infinity|inf"
)
"""Words after a number that change it."""
_UNIT = rf"(?!(?:{_NO_UNIT})\b)[A-Za-z]{{2,20}}"

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
        (" ", r" (?!\d)|(?<!\d) ", ""),  # between digits a space has a meaning
        ("\\", r"\\frac(\d)", r"\\frac{\1}"),
        ("\\", r"(\\frac\{[^{}]*\}) ?(\d)", r"\1{\2}"),
        ("\\", r"\\sqrt(\d)", r"\\sqrt{\1}"),
        ("", r"[.,]+$", ""),
        ("{", r"^\{([^{}\\]*)\}$", r"\1"),
    )
]
"""Where this sign occurs, such text is replaced with that. Most answers have no markup, as the sign tells at once."""
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
    """What a plainly written number stands for."""

    readings: tuple[Fraction, ...]
    """Its value; of a percentage also its hundredth."""
    name: str
    """The variable that it is said to be, if any."""
    fraction: bool
    """Not written as a decimal."""


def same(gold: str, said: str) -> bool | None:
    """Whether two answers are the same; None where that takes more than reading them."""
    one, other = _cached(gold), normalised(said)
    if one == other or not other:
        return bool(one and other)
    words = _same_words(one, other)
    if words is not None:
        return words
    number, another = _cached_number(one), _number(other)
    if number is None:
        return None
    if another is None:
        return (
            False if _WORDS.fullmatch(said) and len(other) > 2 and other.casefold() not in _NO_UNIT.split("|") else None
        )
    return _same_numbers(number, another)


def normalised(answer: str) -> str:
    """The answer without markup, units, spaces and the like; equal texts are equal answers."""
    if len(answer) > _LONGEST or _PLAIN.fullmatch(answer):
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
        return False  # n and N are two letters, which math-verify does not tell apart
    if one.casefold() in _VERDICTS or (len(one) > 2 and one.casefold() == other.casefold()):
        return one.casefold() == other.casefold()
    return None


def _same_numbers(one: _Number, other: _Number) -> bool | None:
    if one.name and other.name and one.name != other.name:
        return None
    if any(left == right for left in one.readings for right in other.readings):
        return True
    left, right = one.readings[0], other.readings[0]
    rounded = one.fraction != other.fraction and abs(left - right) <= _NEAR * max(abs(left), abs(right))
    return None if rounded else False


def _number(answer: str) -> _Number | None:
    """The exact number that an integer, decimal, fraction or mixed number stands for; None for anything else."""
    found = _VALUE.fullmatch(answer) if len(answer) <= _LONGEST else None
    if found is None:
        return None
    top, bottom = found["top"] or found["over"], found["bottom"] or found["under"] or "1"
    if not Fraction(bottom):
        return None
    value = Fraction(top) / Fraction(bottom)
    value = Fraction(found["whole"] or found["mixed"] or 0) + (-value if found["inner"] == "-" else value)
    value = -value if found["sign"] == "-" else value
    readings = (value, value / 100) if found["percent"] else (value,)
    return _Number(readings, found["name"] or "", fraction="." not in answer and bottom != "1")


_cached = functools.lru_cache(maxsize=1024)(normalised)  # the gold answer of a whole group is the same
_cached_number = functools.lru_cache(maxsize=1024)(_number)
