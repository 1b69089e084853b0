"""Exact arithmetic: a small grammar over fractions. Nothing is evaluated as code.

sum     := product (("+" | "-") product)*
product := signed (("*" | "/" | "//" | "%") signed)*
signed  := ("+" | "-") signed | power
power   := atom (("**" | "^") signed)?
atom    := number | "(" sum ")"
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from fractions import Fraction
from typing import Any, TypeAlias

from roll.tools.base import ToolFailed, text_tool

_TOKEN = re.compile(r"\s*(?:(\d+(?:\.\d*)?|\.\d+)|(\*\*|//|[-+*/%^()]))")
_SPACES = re.compile(r"\s*$")
_LONGEST, _DEEPEST = 1000, 50
_MOST_BITS = 4096
"""Most bits of a numerator or denominator."""
_MOST_PLACES = 50
"""Most decimal places of an exact result."""
_Operations: TypeAlias = dict[str, Callable[[Fraction, Fraction], Fraction]]
_SUM: _Operations = {"+": lambda left, right: left + right, "-": lambda left, right: left - right}
_PRODUCT: _Operations = {
    "*": lambda left, right: left * right,
    "/": lambda left, right: left / right,
    "//": lambda left, right: Fraction(left // right),
    "%": lambda left, right: left % right,
}
_ABOUT = "Computes with numbers, + - * / ** and parentheses, exactly."


class CalculatorTool:
    """A stateless `ToolSet` with one tool, `calculator`."""

    tools = (text_tool("calculator", _ABOUT, "expression", "such as (12 + 3.5) * 4 / 7"),)

    async def start(self) -> None: ...

    async def call(self, name: str, arguments: dict[str, Any]) -> str:
        return format_number(evaluate(arguments["expression"]))

    async def close(self) -> None: ...


def evaluate(expression: str) -> Fraction:
    """The value of an expression; ToolFailed if it is malformed, or its value too large."""
    if len(expression) > _LONGEST:
        raise ToolFailed(f"the expression has more than {_LONGEST} characters")
    try:
        return _ExpressionParser(expression).all()
    except ZeroDivisionError:
        raise ToolFailed("division by zero") from None


def format_number(number: Fraction) -> str:
    """A whole number or a decimal if that is exact, otherwise a fraction with an approximate decimal."""
    if number.denominator == 1:
        return str(number.numerator)
    for places in range(1, _MOST_PLACES + 1):
        if 10**places % number.denominator == 0:
            digits = str(abs(number.numerator) * 10**places // number.denominator).rjust(places + 1, "0")
            return f"{'-' if number < 0 else ''}{digits[:-places]}.{digits[-places:]}"
    try:
        approximation = f"{float(number):.12g}"
    except OverflowError:
        approximation = "more than can be written"
    return f"{number.numerator}/{number.denominator} (about {approximation})"


class _ExpressionParser:
    """A recursive descent parser."""

    def __init__(self, expression: str) -> None:
        self._tokens, self._depth, position = deque[str](), 0, 0
        while not _SPACES.match(expression, position):
            token = _TOKEN.match(expression, position)
            if token is None:
                raise ToolFailed(f"{expression[position:].strip()[:20]!r} is neither a number nor an operator")
            self._tokens.append(token[1] or token[2])
            position = token.end()
        self._tokens.append("")  # the end

    def all(self) -> Fraction:
        value = self._nest(self._sum)
        if self._tokens[0]:
            raise ToolFailed(f"{self._tokens[0]!r} is unexpected")
        return value

    def _sum(self) -> Fraction:
        return self._chain(_SUM, self._product)

    def _product(self) -> Fraction:
        return self._chain(_PRODUCT, self._signed)

    def _chain(self, operations: _Operations, operand: Callable[[], Fraction]) -> Fraction:
        value = operand()
        while symbol := self._accept(*operations):
            value = _check_size(operations[symbol](value, operand()))
        return value

    def _signed(self) -> Fraction:
        sign = self._accept("+", "-")
        if not sign:
            return self._power()
        value = self._nest(self._signed)
        return -value if sign == "-" else value

    def _power(self) -> Fraction:
        base = self._atom()
        return _raise_power(base, self._signed()) if self._accept("**", "^") else base

    def _atom(self) -> Fraction:
        if self._accept("("):
            value = self._nest(self._sum)
            if not self._accept(")"):
                raise ToolFailed("a parenthesis is not closed")
            return value
        token = self._tokens[0]
        if not token or not (token[0].isdigit() or token[0] == "."):
            raise ToolFailed(f"{token!r} is not a number" if token else "a number is missing")
        return _check_size(Fraction(self._tokens.popleft()))

    def _nest(self, parse: Callable[[], Fraction]) -> Fraction:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise ToolFailed(f"parentheses and signs are more than {_DEEPEST} deep")
        value = parse()
        self._depth -= 1
        return value

    def _accept(self, *tokens: str) -> str:
        """Consume the next token if it is one of these; empty otherwise."""
        return self._tokens.popleft() if self._tokens[0] in tokens else ""


def _raise_power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        raise ToolFailed("an exponent has to be a whole number")
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
