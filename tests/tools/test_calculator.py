"""Exact arithmetic, and malformed expressions."""

import time
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roll.tools.base import ToolFailed
from roll.tools.calculator import evaluate, format_number


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("1+2*3", "7"),
        ("(1+2)*3", "9"),
        ("2**3**2", "512"),
        ("2^10", "1024"),
        ("-2**2", "-4"),
        ("2**-2", "0.25"),
        ("0.1+0.2", "0.3"),
        ("1/3", "1/3 (about 0.333333333333)"),
        ("-1/8", "-0.125"),
        ("7//2", "3"),
        ("-7//2", "-4"),
        ("-7%3", "2"),
        ("--3", "3"),
        (" 12 345 ".replace(" ", ""), "12345"),
        (".5 + 5.", "5.5"),
        ("(-1)**1000000", "1"),
        ("123456789123456789*987654321", "121932631234567900112635269"),
    ],
)
def test_an_expression_comes_to_exactly_this(expression: str, result: str) -> None:
    assert format_number(evaluate(expression)) == result


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("1/0", "division by zero"),
        ("0**-1", "division by zero"),
        ("5%0", "division by zero"),
        ("2**0.5", "an exponent has to be a whole number"),
        ("9**9**9", "the result is too large"),
        ("9**99999999999", "the result is too large"),
        ("(" * 60 + "1" + ")" * 60, "deep"),
        ("-" * 999 + "1", "deep"),
        ("1" * 2000, "more than 1000 characters"),
        ("", "a number is missing"),
        ("1+", "a number is missing"),
        ("(1", "a parenthesis is not closed"),
        ("1)", "')' is unexpected"),
        ("1 2", "'2' is unexpected"),
        ("*3", "'*' is not a number"),
        ("__import__('os')", "is neither a number nor an operator"),
        ("2e5", "is neither a number nor an operator"),
    ],
)
def test_a_malformed_expression_is_reported(expression: str, says: str) -> None:
    began = time.perf_counter()
    with pytest.raises(ToolFailed) as caught:
        evaluate(expression)
    assert says in str(caught.value) and time.perf_counter() - began < 30


numbers = st.integers(0, 999).map(str)
expressions = st.recursive(
    numbers,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("+-*/"), inner).map("".join), inner.map(lambda text: f"({text})")
    ),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(expressions)
def test_it_agrees_with_python_over_fractions(expression: str) -> None:
    try:
        import re

        expected = eval(re.sub(r"\d+", lambda number: f"Fraction({number[0]})", expression))
    except ZeroDivisionError:
        with pytest.raises(ToolFailed, match="division by zero"):
            evaluate(expression)
        return
    assert evaluate(expression) == expected and isinstance(expected, Fraction)
