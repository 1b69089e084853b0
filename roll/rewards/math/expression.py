"""Expressions in prose: numbers, variables, functions and operators without words between them."""

from __future__ import annotations

import re
from typing import NamedTuple

from roll.rewards.math.units import KNOWN

_FUNCTION = r"(?<![A-Za-z])(?:sqrt|log|ln|sin|cos|tan|exp|pi)(?![A-Za-z])"
_LETTER = r"(?<![A-Za-z'\u2019])(?:[b-hj-zB-HJ-Zθ]|[aAiI](?!\s+[A-Za-z]{2}))(?![A-Za-z'\u2019]|\s+\d|\.\w)"
_COMMAND = r"\\text ?\{[^{}]{0,30}\}|\\[A-Za-z]+|\\[{}|,;!]"
_SIGN = r"[-+*/^=<>≤≥≠±√π∞∅\u222a∈\xd7·÷|!%°_²³¹⁰⁴-⁹⁺⁻₀-₉]|(?<=\d)\s?:(?=\s?\d)"
_NUMBER = r"\d+(?:,\d{3})*(?:\.\d+)?|\.\d+"
_ATOM = rf"(?:{_COMMAND}|{_FUNCTION}|{_NUMBER}|{_LETTER}|{_SIGN})"
_LEAF = rf"(?:{_ATOM}|[\s,&])"
_GROUP = rf"[(\[{{](?>(?:{_LEAF}|[(\[{{]{_LEAF}{{0,100}}+[)\]}}]){{0,200}}+)[)\]}}]"
_RUN = re.compile(rf"(?:{_GROUP}|{_ATOM})(?>(?:\s*(?:{_GROUP}|{_ATOM}))*+)")
_HAS_VALUE = re.compile(r"[\dπ∞√∅]|\\(?:pi|infty|sqrt|frac|dfrac|ln|log|begin)(?![a-z])")
_SYMBOLIC = re.compile(r"[A-Za-z\\^_√π∞∅²³¹⁰⁴-⁹⁺⁻₀-₉≤≥<>]|\d\s?:\s?\d|[(\[].*,.*[)\]]", re.DOTALL)
_WITH_UNIT = re.compile(rf"([-+]?(?:{_NUMBER}))\s([A-Za-z])")
_ATTACHED = "^_²³"
"""Signs that belong to the word before them: 36 cm²."""
_MAX_CHARS = 1024


class Expression(NamedTuple):
    """An expression in a text, and where it is."""

    value: str
    start: int
    end: int


def last_symbolic(text: str) -> Expression | None:
    """The last expression of a text, if it is more than a number."""
    runs = [
        run for run in _RUN.finditer(text[-_MAX_CHARS:]) if run[0][0] not in _ATTACHED and _HAS_VALUE.search(run[0])
    ]
    return _symbolic(runs[-1], max(0, len(text) - _MAX_CHARS)) if runs else None


def leading_symbolic(text: str) -> Expression | None:
    """The expression that a text begins with, if it is more than a number and has a value."""
    run = _RUN.match(text[:_MAX_CHARS])
    return _symbolic(run, 0) if run and _HAS_VALUE.search(run[0]) else None


def _symbolic(run: re.Match[str], offset: int) -> Expression | None:
    value = run[0].strip()
    if (measured := _WITH_UNIT.fullmatch(value)) and measured[2] in KNOWN:
        value = rf"{measured[1]}\text{{ {measured[2]}}}"
    elif not _SYMBOLIC.search(value):
        return None
    return Expression(value, run.start() + offset, run.start() + offset + len(run[0].rstrip()))
