"""Exact arithmetic: a small grammar over fractions, of which nothing is ever evaluated as code.

sum     := product (("+" | "-") product)*
product := signed (("*" | "/" | "//" | "%") signed)*
signed  := ("+" | "-") signed | power
power   := atom (("**" | "^") signed)?
atom    := number | "(" sum ")"
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

from roll.data.tools import Tool
from roll.tools.base import ToolFailed

_TOKEN = re.compile(r"\s*(?:(\d+(?:\.\d*)?|\.\d+)|(\*\*|//|[-+*/%^()]))")
_SPACES = re.compile(r"\s*$")
_LONGEST, _DEEPEST = 1000, 50
_MOST_BITS = 4096
"""Of a numerator or denominator."""
_EXPRESSION = {
    "type": "object",
    "properties": {"expression": {"type": "string", "description": "such as (12 + 3.5) * 4 / 7"}},
    "required": ["expression"],
}


class Calculator:
    """A `ToolSet` with one tool, `calculator`, that keeps nothing between calls."""

    tools = (Tool("calculator", "Computes with numbers, + - * / ** and parentheses, exactly.", _EXPRESSION),)

    async def start(self) -> None: ...

    async def call(self, name: str, arguments: dict[str, Any]) -> str:
        return written(computed(arguments["expression"]))

    async def close(self) -> None: ...


def computed(expression: str) -> Fraction:
    """What an expression comes to; ToolFailed where it is none, or comes to too much."""
    if len(expression) > _LONGEST:
        raise ToolFailed(f"the expression has more than {_LONGEST} characters")
    return _Reader(_tokens(expression)).all()


def written(number: Fraction) -> str:
    """As a whole number or a decimal where that is exact, else as a fraction with a decimal that is near."""
    if number.denominator == 1:
        return str(number.numerator)
    rest = number.denominator
    places = 0
    for prime in (2, 5):
        power = 0
        while rest % prime == 0:
            rest, power = rest // prime, power + 1
        places = max(places, power)
    if rest != 1 or places > 50:
        return f"{number.numerator}/{number.denominator} (about {_near(number)})"
    digits = str(abs(number.numerator) * 10**places // number.denominator).rjust(places + 1, "0")
    return f"{'-' if number < 0 else ''}{digits[:-places]}.{digits[-places:]}"


def _near(number: Fraction) -> str:
    try:
        return f"{float(number):.12g}"
    except OverflowError:
        return "more than can be written"


def _tokens(expression: str) -> list[str]:
    found: list[str] = []
    place = 0
    while not _SPACES.match(expression, place):
        token = _TOKEN.match(expression, place)
        if token is None:
            raise ToolFailed(f"{expression[place:].strip()[:20]!r} is no number and no operator")
        found.append(token[1] or token[2])
        place = token.end()
    return found


class _Reader:
    """Reads tokens from left to right."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens, self._place, self._depth = tokens, 0, 0

    def all(self) -> Fraction:
        found = self._sum()
        if self._place < len(self._tokens):
            raise ToolFailed(f"{self._tokens[self._place]!r} stands where nothing may")
        return found

    def _sum(self) -> Fraction:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise ToolFailed(f"parentheses and signs are more than {_DEEPEST} deep")
        found = self._product()
        while operator := self._taken("+", "-"):
            right = self._product()
            found = _bounded(found + right if operator == "+" else found - right)
        self._depth -= 1
        return found

    def _product(self) -> Fraction:
        found = self._signed()
        while operator := self._taken("*", "/", "//", "%"):
            found = _bounded(_combined(operator, found, self._signed()))
        return found

    def _signed(self) -> Fraction:
        sign = self._taken("+", "-")
        if not sign:
            return self._power()
        self._depth += 1
        if self._depth > _DEEPEST:
            raise ToolFailed(f"parentheses and signs are more than {_DEEPEST} deep")
        found = self._signed()
        self._depth -= 1
        return -found if sign == "-" else found

    def _power(self) -> Fraction:
        base = self._atom()
        return _raised(base, self._signed()) if self._taken("**", "^") else base

    def _atom(self) -> Fraction:
        if self._taken("("):
            found = self._sum()
            if not self._taken(")"):
                raise ToolFailed("a parenthesis is not closed")
            return found
        token = self._tokens[self._place] if self._place < len(self._tokens) else ""
        if not token or not (token[0].isdigit() or token[0] == "."):
            raise ToolFailed(f"{token!r} stands where a number should" if token else "a number is missing")
        self._place += 1
        return _bounded(Fraction(token))

    def _taken(self, *tokens: str) -> str:
        """The next token, if it is one of these."""
        if self._place < len(self._tokens) and self._tokens[self._place] in tokens:
            self._place += 1
            return self._tokens[self._place - 1]
        return ""


def _combined(operator: str, left: Fraction, right: Fraction) -> Fraction:
    if operator == "*":
        return left * right
    if right == 0:
        raise ToolFailed("division by zero")
    if operator == "/":
        return left / right
    return Fraction(left // right) if operator == "//" else left % right


def _raised(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        raise ToolFailed("an exponent has to be a whole number")
    if base == 0 and exponent < 0:
        raise ToolFailed("division by zero")
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if bits > 1 and bits * abs(exponent) > 2 * _MOST_BITS:
        raise ToolFailed("the result is too large")
    if abs(base) == 1:
        exponent %= 2
    return _bounded(base**exponent.numerator)


def _bounded(number: Fraction) -> Fraction:
    if max(number.numerator.bit_length(), number.denominator.bit_length()) > _MOST_BITS:
        raise ToolFailed("the result is too large")
    return number
