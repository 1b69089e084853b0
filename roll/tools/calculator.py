"""Exact arithmetic: a small grammar over fractions. Nothing is evaluated as code.

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
"""Most bits of a numerator or denominator."""
_EXPRESSION = {
    "type": "object",
    "properties": {"expression": {"type": "string", "description": "such as (12 + 3.5) * 4 / 7"}},
    "required": ["expression"],
}


class CalculatorTool:
    """A stateless `ToolSet` with one tool, `calculator`."""

    tools = (Tool("calculator", "Computes with numbers, + - * / ** and parentheses, exactly.", _EXPRESSION),)

    async def start(self) -> None: ...

    async def call(self, name: str, arguments: dict[str, Any]) -> str:
        return format_number(evaluate(arguments["expression"]))

    async def close(self) -> None: ...


def evaluate(expression: str) -> Fraction:
    """The value of an expression; ToolFailed if it is malformed, or its value too large."""
    if len(expression) > _LONGEST:
        raise ToolFailed(f"the expression has more than {_LONGEST} characters")
    return _ExpressionParser(_tokens(expression)).all()


def format_number(number: Fraction) -> str:
    """A whole number or a decimal if that is exact, otherwise a fraction with an approximate decimal."""
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
        return f"{number.numerator}/{number.denominator} (about {_approximate(number)})"
    digits = str(abs(number.numerator) * 10**places // number.denominator).rjust(places + 1, "0")
    return f"{'-' if number < 0 else ''}{digits[:-places]}.{digits[-places:]}"


def _approximate(number: Fraction) -> str:
    try:
        return f"{float(number):.12g}"
    except OverflowError:
        return "more than can be written"


def _tokens(expression: str) -> list[str]:
    tokens: list[str] = []
    position = 0
    while not _SPACES.match(expression, position):
        token = _TOKEN.match(expression, position)
        if token is None:
            raise ToolFailed(f"{expression[position:].strip()[:20]!r} is neither a number nor an operator")
        tokens.append(token[1] or token[2])
        position = token.end()
    return tokens


class _ExpressionParser:
    """A recursive descent parser over the tokens."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens, self._position, self._depth = tokens, 0, 0

    def all(self) -> Fraction:
        value = self._sum()
        if self._position < len(self._tokens):
            raise ToolFailed(f"{self._tokens[self._position]!r} is unexpected")
        return value

    def _sum(self) -> Fraction:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise ToolFailed(f"parentheses and signs are more than {_DEEPEST} deep")
        value = self._product()
        while operator := self._accept("+", "-"):
            right = self._product()
            value = _check_size(value + right if operator == "+" else value - right)
        self._depth -= 1
        return value

    def _product(self) -> Fraction:
        value = self._signed()
        while operator := self._accept("*", "/", "//", "%"):
            value = _check_size(_apply(operator, value, self._signed()))
        return value

    def _signed(self) -> Fraction:
        sign = self._accept("+", "-")
        if not sign:
            return self._power()
        self._depth += 1
        if self._depth > _DEEPEST:
            raise ToolFailed(f"parentheses and signs are more than {_DEEPEST} deep")
        value = self._signed()
        self._depth -= 1
        return -value if sign == "-" else value

    def _power(self) -> Fraction:
        base = self._atom()
        return _raise_power(base, self._signed()) if self._accept("**", "^") else base

    def _atom(self) -> Fraction:
        if self._accept("("):
            value = self._sum()
            if not self._accept(")"):
                raise ToolFailed("a parenthesis is not closed")
            return value
        token = self._tokens[self._position] if self._position < len(self._tokens) else ""
        if not token or not (token[0].isdigit() or token[0] == "."):
            raise ToolFailed(f"{token!r} is not a number" if token else "a number is missing")
        self._position += 1
        return _check_size(Fraction(token))

    def _accept(self, *tokens: str) -> str:
        """Consume the next token if it is one of these; empty otherwise."""
        if self._position < len(self._tokens) and self._tokens[self._position] in tokens:
            self._position += 1
            return self._tokens[self._position - 1]
        return ""


def _apply(operator: str, left: Fraction, right: Fraction) -> Fraction:
    if operator == "*":
        return left * right
    if right == 0:
        raise ToolFailed("division by zero")
    if operator == "/":
        return left / right
    return Fraction(left // right) if operator == "//" else left % right


def _raise_power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        raise ToolFailed("an exponent has to be a whole number")
    if base == 0 and exponent < 0:
        raise ToolFailed("division by zero")
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if bits > 1 and bits * abs(exponent) > 2 * _MOST_BITS:
        raise ToolFailed("the result is too large")
    if abs(base) == 1:
        exponent %= 2
    return _check_size(base**exponent.numerator)


def _check_size(number: Fraction) -> Fraction:
    if max(number.numerator.bit_length(), number.denominator.bit_length()) > _MOST_BITS:
        raise ToolFailed("the result is too large")
    return number
