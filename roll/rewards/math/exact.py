"""Exact comparison of answers as text, words, numbers and lists; it decides only where it is certain."""

from __future__ import annotations

import re
from fractions import Fraction

from roll.rewards.math import shape
from roll.rewards.math.notation import MAX_CHARS, Answer, Number, read, read_cached, read_number, read_number_cached

_ROUNDING = Fraction(2, 10**6)
"""Relative distance within which a decimal may be a rounded fraction."""
_DECIMAL = re.compile(r"-?\d+(?:\.\d+)?")
_YES_NO = frozenset({"yes", "no", "true", "false"})

Undecided = tuple[str, str]
"""Both answers in LaTeX, for a comparison by algebra."""


def same(gold: str, answer: str) -> bool | None:
    """Whether two answers are equal; None if that takes algebra."""
    verdict = decide(gold, answer)
    return verdict if isinstance(verdict, bool) else None


def normalise(answer: str) -> str:
    """The answer without markup, units and spaces; equal texts are equal answers."""
    return read(answer).compact


def decide(gold: str, answer: str) -> bool | Undecided:
    """Whether two answers are equal, or what algebra has to compare."""
    if gold == answer and answer.isdigit():
        return True
    one, other = read_cached(gold), read_cached(answer) if len(answer) <= MAX_CHARS else read(answer)
    if not one.compact or not other.compact or (one.unit and other.unit and one.unit != other.unit):
        return False
    if one.compact == other.compact:
        return True
    if _DECIMAL.fullmatch(one.compact) and _DECIMAL.fullmatch(other.compact):
        return _digits(one.compact) == _digits(other.compact)
    if len(gold) > MAX_CHARS or len(answer) > MAX_CHARS:
        return one.latex, other.latex
    number = read_number_cached(one.compact)
    if number is not None and (another := read_number(other.compact)) is not None:
        return _decide_numbers(number, another, one, other)
    same_words = _same_words(one.compact, other.compact)
    return _decide_expressions(one, other) if same_words is None else same_words


def _digits(decimal: str) -> str:
    """The digits that are significant: equal for equal numbers."""
    digits = decimal.lstrip("-").lstrip("0")
    digits = (digits.rstrip("0").rstrip(".") if "." in digits else digits) or "0"
    return f"-{digits}" if decimal[0] == "-" and digits != "0" else digits


def _decide_expressions(one: Answer, other: Answer) -> bool | Undecided:
    if (same_base := shape.same_base(one.compact, other.compact)) is not None:
        return same_base
    if (sides := shape.approximation(other)) is not None:
        return _decide_approximation(one, *sides)
    one, other = shape.same_form(*shape.same_relation(one, other))
    left, right = shape.right_sides(one, other)
    if right is None or not shape.same_brackets(left.compact, right.compact):
        return False
    if left.compact == right.compact:
        return True
    parts, others = shape.split_list(left), shape.split_list(right)
    if len(parts) == 1 and (forms := shape.alternatives(other)):
        return all(decide(one.latex, form) is True for form in forms) or _decide_apart(parts, others, left, right)
    if len(parts) > 1 or len(others) > 1:
        return _decide_lists(parts, others, (left.latex, right.latex))
    return _decide_values(left, right)


def _decide_apart(parts: list[str], others: list[str], left: Answer, right: Answer) -> bool | Undecided:
    """The verdict on what is not one value in several forms."""
    return _decide_lists(parts, others, (left.latex, right.latex)) if len(others) > 1 else _decide_values(left, right)


def _decide_approximation(gold: Answer, exact: Answer | None, decimal: Answer) -> bool | Undecided:
    """Whether an exact value, or its decimal if the gold answer is one, equals it."""
    numbers = read_number(exact.compact) if exact else None, read_number(decimal.compact)
    if numbers[0] and numbers[1] and not _near(numbers[0], numbers[1]):
        return False
    chosen = decimal if exact is None or (_DECIMAL.fullmatch(gold.compact) and "." in gold.compact) else exact
    number, another = read_number_cached(gold.compact), read_number(chosen.compact)
    if number is not None and another is not None:
        return _decide_numbers(number, another, gold, chosen)
    return gold.compact == chosen.compact or _decide_expressions(gold, chosen)


def _near(one: Number, other: Number) -> bool:
    """Whether one may be the other, rounded."""
    return any(abs(left - right) * 20 <= abs(left) for left in one.readings for right in other.readings)


def _decide_values(one: Answer, other: Answer) -> bool | Undecided:
    number, another = read_number_cached(one.compact), read_number(other.compact)
    if number is not None and another is not None:
        return _decide_numbers(number, another, one, other)
    if number is not None and not shape.is_numeric(other.latex):
        return False
    if another is not None and shape.is_word(one.latex):
        return False
    return _latex(one.latex, number), _latex(other.latex, another)


def _decide_lists(parts: list[str], others: list[str], texts: Undecided) -> bool | Undecided:
    """Lists and sets, in any order; a list never equals a single value."""
    if r"\pm" in texts[0] + texts[1]:
        return texts
    if len(parts) != len(others):
        return False
    numbers, other_numbers = [read_number_cached(part) for part in parts], [read_number(part) for part in others]
    if None in numbers or None in other_numbers:
        return (texts[0], shape.as_set(others)) if shape.is_set(texts[0]) else (", ".join(parts), ", ".join(others))
    values = sorted(number.value for number in numbers if number)
    other_values = sorted(number.value for number in other_numbers if number)
    return values == other_values


def _latex(text: str, number: Number | None) -> str:
    if number is None or number.percent or number.value.denominator == 1:
        return text if number is None or number.percent else str(number.value)
    return text if "." in text else rf"\frac{{{number.value.numerator}}}{{{number.value.denominator}}}"


def _same_words(one: str, other: str) -> bool | None:
    if not (one.isalpha() and other.isalpha()):
        return None
    if len(one) == len(other) == 1:
        return False  # n and N differ, which math-verify ignores
    if one.casefold() in _YES_NO or (len(one) > 2 and one.casefold() == other.casefold()):
        return one.casefold() == other.casefold()
    return None


def _decide_numbers(number: Number, another: Number, one: Answer, other: Answer) -> bool | Undecided:
    same_numbers = _same_numbers(number, another)
    return (_latex(one.latex, number), _latex(other.latex, another)) if same_numbers is None else same_numbers


def _same_numbers(one: Number, other: Number) -> bool | None:
    if one.percent and other.percent:
        return one.value == other.value
    if one.percent:
        return other.value in (one.value, one.value / 100)
    if any(one.value == reading for reading in other.readings):
        return True
    left, right = one.value, other.readings[-1]
    rounded = one.fraction != other.fraction and abs(left - right) <= _ROUNDING * max(abs(left), abs(right))
    return None if rounded else False
