"""The math verifier: what a response commits to, and when two answers are one."""

import asyncio
import time

import pytest

from roll.errors import ConfigError
from roll.rewards.base import RewardAdapter
from roll.rewards.math.pool import Verdict
from roll.rewards.math.reward import Math, score_answer
from roll.types import Score, Spec, Task


class Algebra:
    """Stands for the comparers: says one thing to all questions, and remembers them."""

    def __init__(self, verdict: Verdict = Verdict.DIFFERENT) -> None:
        self.verdict, self.asked = verdict, list[tuple[str, str]]()

    def __call__(self, gold: str, said: str) -> Verdict:
        self.asked.append((gold, said))
        return self.verdict


def right(answer: str, response: str) -> bool:
    """Whether a response is right by reading alone."""
    return score_answer(answer, response, Algebra()).value == 1.0


def decided(answer: str, response: str) -> bool:
    algebra = Algebra()
    score_answer(answer, response, algebra)
    return not algebra.asked


def test_a_boxed_answer_in_one_paragraph_is_right():
    assert right("12", r"Three times four is twelve, so the total comes to \boxed{12} and we are done.")


def test_the_last_boxed_answer_counts():
    assert right("7", r"First \boxed{5}, but no: \boxed{7}. Checked in 3 ways.")
    assert not right("5", r"First \boxed{5}, but no: \boxed{7}.")


def test_nested_braces_stay_within_the_box():
    assert right(r"\frac{1}{2}", r"\boxed{\frac{1}{2}}")
    assert right(r"\sqrt{\frac{3}{4}}", r"so \boxed{\sqrt{\frac{3}{4}}} it is")
    assert right(r"\{1, 2\}", r"\boxed{\{1,2\}}")


def test_a_box_within_a_box_counts_for_both():
    assert right("5", r"\boxed{\boxed{5}}")


def test_an_incomplete_box_is_not_an_answer():
    assert right("3", r"\boxed{3} and then \boxed{4")


def test_thinking_is_ignored():
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
    assert not right("2", r"so it is $\frac{1}{2}$")


def test_a_number_within_an_expression_or_a_list_is_not_the_answer():
    assert not right("3", "The answer is 3x + 2")
    assert not right("3", "The answer is 3 or 5")
    assert not right("12", "The answer is 12 / 5")
    assert not right("2", "The answer is n >= 2")


def test_without_a_statement_the_text_after_the_last_equals_sign_counts():
    assert right(r"\sqrt{2}", r"Hence x = \sqrt{2}.")
    assert right("5", "Adding up, 2 + 3 = 5 apples.")
    assert not right("2", "x = 2 y")


def test_a_response_that_is_only_a_word_is_compared_whole():
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
        ("0.5", r"50\%"),
        ("1 1/2", "3/2"),
        ("1 000 000", "1000000"),
        ("8,\\!424", "8424"),
        (r"\frac 1 2", "0.5"),
        (r"\frac{1}2", "0.5"),
        ("18", "18 dollars"),
        ("-3", "\u22123"),
        ("5", "{5}"),
    ],
)
def test_these_are_the_same_answer(one: str, other: str):
    assert right(one, rf"\boxed{{{other}}}")
    assert right(other, rf"\boxed{{{one}}}")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("0.33", "1/3"),
        ("n", "N"),
        ("12", "21"),
        ("1", ""),
        ("(1,2)", "(2,1)"),
        ("1/0", "0"),
        ("2", "-2"),
        ("", ""),
        ("23", "2 3"),
        ("12-30", r"12\text{ or }-30"),
        ("ab", "AB"),
        ("3", "3x"),
        ("yes", "no"),
    ],
)
def test_these_are_different_answers(one: str, other: str):
    assert not right(one, rf"\boxed{{{other}}}")


def test_a_numeric_answer_from_json_is_compared_as_a_number():
    assert Math().score(Task(id="t", domain="math", answer=5), "5.0") == Score(1.0)


@pytest.mark.parametrize(
    "response",
    [
        r"\boxed{19}",
        "The answer is 19 dollars, after 18 steps.",
        "#### 18.5",
        "She has 19 left.",
        r"\boxed{no idea}",
        "The answer is unknown",
        r"\boxed{}",
        "",
        "<think>18",
    ],
)
def test_a_wrong_number_is_wrong_without_algebra(response: str):
    assert not right("18", response)
    assert decided("18", response)


@pytest.mark.parametrize(
    ("gold", "response"),
    [
        (r"\frac{\pi}{4}", r"\boxed{\pi/4}"),
        ("1/3", r"\boxed{0.333333}"),
        ("x+1", "The answer is 1+x."),
        ("18", r"\boxed{2 \cdot 3^2}"),
        ("1000", r"\boxed{10^3}"),
        ("x = 5", r"\boxed{y = 5}"),
    ],
)
def test_answers_that_exact_comparison_cannot_decide_go_to_math_verify(gold: str, response: str):
    assert not decided(gold, response)
    assert score_answer(gold, response, Algebra(Verdict.SAME)) == Score(1.0)
    assert score_answer(gold, response, Algebra(Verdict.DIFFERENT)) == Score(0.0)


def test_math_verify_is_called_once_with_plain_latex():
    algebra = Algebra()
    score_answer(r"$\frac{\pi}{4}$", "so\n\\boxed{\\(\\pi /\n4\\).}", algebra)
    assert algebra.asked == [(r"\frac{\pi}{4}", r"\pi / 4")]


def test_an_unfinished_comparison_scores_zero_with_a_part_that_says_why():
    assert score_answer("x", r"\boxed{y+1}", Algebra(Verdict.TIMED_OUT)) == Score(0.0, {"timed_out": 1.0})
    assert score_answer("x", r"\boxed{y+1}", Algebra(Verdict.CRASHED)) == Score(0.0, {"crashed": 1.0})


def test_an_answer_that_is_too_long_or_not_mathematics_is_not_sent_to_math_verify():
    algebra = Algebra(Verdict.SAME)
    assert score_answer("x", r"\boxed{" + "y" * 5000 + "}", algebra) == Score(0.0)
    assert score_answer("x", "\\boxed{y\x1b}", algebra) == Score(0.0)
    assert score_answer("x", r"\boxed{---}", algebra) == Score(0.0)
    assert score_answer("2x", r"\boxed{it cannot be determined}", algebra) == Score(0.0)
    assert score_answer("2x", "The answer is (2x + 1", algebra) == Score(0.0)
    assert score_answer("2x", r"\boxed{x \text{倍}}", algebra) == Score(0.0)
    assert score_answer("2x", r"\boxed{my answer 2 x}", algebra) == Score(0.0)
    assert algebra.asked == []


def test_a_task_without_an_answer_is_refused():
    with pytest.raises(ConfigError, match="'t': no answer"):
        Math().score(Task(id="t", domain="math"), "5")


@pytest.mark.sweep(keep=5)
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
def test_no_response_is_expensive(bomb: str):
    start = time.thread_time()
    assert not right("12", bomb)
    assert time.thread_time() - start < 20.0  # linear takes some hundredths


@pytest.mark.slow
def test_a_process_that_scores_has_algebra_loaded_from_the_start() -> None:
    made = RewardAdapter.load(Spec("math", {"timeout_s": 3.0}))
    assert isinstance(made.instance, Math)
    assert asyncio.run(made.start()) is None
    assert made.instance.pool._server is not None
    asyncio.run(made.stop())
    assert made.instance.pool._server is None


def test_a_long_name_before_an_equals_sign_is_not_expensive():
    response = "\\boxed{" + "a" * 60 + "?=5}"
    assert Math().score(Task(id="t", domain="math", answer="5"), response).value == 0.0
