"""The math verifier: what a reply commits to, and when two answers are one."""

import itertools
import json
import os
import time
from pathlib import Path

import pytest

from roll.errors import ConfigError
from roll.rewards.math import score
from roll.types import Task


def right(answer: object, reply: str) -> bool:
    return score(Task(id="t", domain="math", answer=answer), reply).value == 1.0


def test_a_boxed_answer_in_one_paragraph_is_right():
    assert right("12", r"Three times four is twelve, so the total comes to \boxed{12} and we are done.")


def test_the_last_boxed_answer_counts():
    assert right("7", r"First \boxed{5}, but no: \boxed{7}. Checked in 3 ways.")
    assert not right("5", r"First \boxed{5}, but no: \boxed{7}.")


def test_nested_braces_stay_within_the_box():
    assert right(r"\frac{1}{2}", r"\boxed{\frac{1}{2}}")
    assert right(r"\sqrt{\frac{3}{4}}", r"so \boxed{\sqrt{\frac{3}{4}}} it is")
    assert right(r"\{1, 2\}", r"\boxed{\{1,2\}}")


def test_a_box_that_was_cut_off_is_no_answer():
    assert right("3", r"\boxed{3} and then \boxed{4")


def test_what_was_thought_is_not_what_was_said():
    assert not right("5", r"<think>maybe \boxed{5}</think> It is \boxed{6}.")
    assert right("6", r"maybe \boxed{5}</think> It is 6")
    assert not right("5", r"<think>maybe \boxed{5}")


def test_a_stated_answer_counts_where_nothing_is_boxed():
    assert right("18", "She has 3 left.\n#### 18")
    assert right("42", "The answer is 42. That took 3 steps.")
    assert right("42", "The answer is: $42$ dollars, after 3 steps")
    assert right("1/2", r"The final answer is **\(\frac{1}{2}\)**.")
    assert right("4", "The answer is 3, wait, the answer is 4")
    assert not right("3", "The answer is 3, wait, the answer is 4")


def test_else_the_last_number_counts():
    assert right("64", "12 + 52 makes 64")
    assert right("1200", "That makes $1,200.")
    assert right("5", "10-5 leaves 10-5=5.")
    assert not right("12", "12 + 52 makes 64")


def test_a_reply_that_is_only_a_word_is_compared_whole():
    assert right("Yes", " yes. ")
    assert not right("Yes", "no")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1/2", r"\dfrac{1}{2}"),
        ("0.5", r"\frac12"),
        ("-1/2", r"-\frac{1}{2}"),
        (r"\frac{-1}{2}", "-0.5"),
        (r"1\frac{2}{3}", r"\tfrac{5}{3}"),
        ("2", "2.0"),
        ("1,000,000", "1000000"),
        ("1{,}000", "1000"),
        ("50", r"50\%"),
        ("90", r"90^\circ"),
        ("90", "90 degrees"),
        ("5", r"5\text{ cm}"),
        ("Yes", r"\text{yes}"),
        (r"(-5, 0)", r"\left( -5,0 \right)"),
        ("5", "x = 5"),
        ("18", r"\$18"),
        ("e^2", "$e^2$."),
        ("007", "7"),
    ],
)
def test_these_are_the_same_answer(one: str, other: str):
    assert right(one, rf"\boxed{{{other}}}")
    assert right(other, rf"\boxed{{{one}}}")


@pytest.mark.parametrize(
    ("one", "other"),
    [("0.33", "1/3"), ("n", "N"), ("12", "21"), ("1", ""), ("(1,2)", "(2,1)"), ("1/0", "0"), ("2", "-2"), ("", "")],
)
def test_these_are_different_answers(one: str, other: str):
    assert not right(one, rf"\boxed{{{other}}}")


def test_a_numeric_answer_from_json_is_compared_as_a_number():
    assert right(5, "5.0")


def test_a_task_without_an_answer_is_refused():
    with pytest.raises(ConfigError, match="'t': no answer"):
        score(Task(id="t", domain="math"), "5")


@pytest.mark.parametrize(
    "bomb",
    [
        r"\boxed{9^{9^{9^9}}}",
        r"\boxed{1000000!}",
        r"\boxed{(x+1)^{5000}}",
        r"\boxed{" + "(" * 3000 + "1" + ")" * 3000 + "}",
        r"\boxed{" * 30_000,
        r"\boxed{" + "9" * 100_000 + "}",
        r"\boxed{1" + "^" + " " * 100_000 + "}",
        r"\boxed{" + "." * 100_000 + "1}",
        "answer " * 20_000,
        "answer is " * 20_000,
        "1," * 50_000,
        r"\text{" * 20_000,
        "{" * 100_000,
        "1 " * 50_000 + "1/" * 50_000,
    ],
)
def test_no_reply_is_expensive(bomb: str):
    start = time.monotonic()
    assert not right("12", bomb)
    assert time.monotonic() - start < 2.0  # linear takes some hundredths


@pytest.mark.skipif("ROLL_DATA" not in os.environ, reason="ROLL_DATA names no folder with data")
def test_every_gold_answer_is_right_when_boxed_and_its_neighbour_is_not():
    files = sorted((Path(os.environ["ROLL_DATA"]) / "math").glob("*.jsonl"))
    assert files
    for file in files:
        answers = [json.loads(line)["answer"] for line in file.open(encoding="utf-8")]
        wrong = [answer for answer in answers if not right(answer, rf"Hence \boxed{{{answer}}}, as was asked.")]
        assert wrong == []
        mixed = sum(right(a, rf"\boxed{{{b}}}") for a, b in itertools.pairwise(answers))
        assert mixed / len(answers) < 0.06  # neighbours agree by chance: "Yes", "0", "1"
