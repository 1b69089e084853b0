"""The reward `math` with the package math-verify behind it: notations, bombs, and the golds of real data."""

import functools
import importlib.util
import itertools
import multiprocessing
import os
import random
import threading
from pathlib import Path

import pytest

from benchmarks.math import BOMBS, WORDED, change_number, golds, mismatched_golds, rewrite_notations, surface_forms
from roll.rewards.math.pool import Verdict
from roll.rewards.math.reward import Math, score_answer
from roll.types import Task

pytestmark = pytest.mark.slow

LIMIT_S = 2.0
MATH = Math(timeout_s=LIMIT_S)
HANG_S = 300.0

installed = pytest.mark.skipif(
    importlib.util.find_spec("math_verify") is None, reason="the package math-verify is not installed"
)
with_data = pytest.mark.skipif("ROLL_DATA" not in os.environ, reason="ROLL_DATA names no folder with data")


@pytest.fixture(scope="module", autouse=True)
def started() -> None:
    """Start the comparers before the first time limit, which a busy machine could exceed."""
    if importlib.util.find_spec("math_verify") is not None:
        MATH.pool.compare("x", "1", timeout_s=60.0)


def value(gold: str, response: str) -> float:
    return MATH.score(Task(id="t", domain="math", answer=gold), response).value


def data(name: str) -> list[str]:
    return golds(Path(os.environ["ROLL_DATA"]), name)


def never_asked(gold: str, said: str) -> Verdict:
    raise AssertionError(f"{gold!r} and {said!r} should be decided by reading")


@installed
@pytest.mark.parametrize(
    ("gold", "said"),
    [
        (r"\frac{\pi}{4}", r"\pi/4"),
        ("x+1", "1+x"),
        ("h + 1", "1 + h"),
        ("5", "5 m"),
        (r"\frac{1}{3}", "0.3333333"),
        ("9", r"9 \%"),
        (r"\sin^2(x)", r"1 - \cos^2(x)"),
        ("n!", r"n \cdot (n-1)!"),
        (r"2\sqrt{3}", r"\sqrt{12}"),
        (r"\sqrt{2}", "2^{1/2}"),
        (r"e^{-2}", r"\frac{1}{e^2}"),
        ("(x+1)^2", "x^2+2x+1"),
        (r"\{1, 2\}", r"\{2, 1\}"),
        ("1000", "10^3"),
        (r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt{2}}"),
    ],
)
def test_the_same_in_another_notation_is_right(gold: str, said: str):
    assert value(gold, rf"\boxed{{{said}}}") == 1.0


@installed
@pytest.mark.parametrize(
    ("gold", "said"),
    [
        ("x+1", "x-1"),
        ("(1,2)", "(2,1)"),
        (r"\pi", "3.14"),
        ("n", "N"),
        ("9", r"9 \nonsense{"),
        (r"\frac{\pi}{4}", "4"),
        (r"\frac{1}{2}", r"A.<b>\frac{1}{2}]NaN[NULL"),
        (r"\frac{1}{2}", r"the answer \frac{1}{2} or 3"),
        (r"\frac{1}{2}", r"!! \frac{1}{2}\\ "),
    ],
)
def test_something_else_is_wrong(gold: str, said: str):
    assert value(gold, rf"\boxed{{{said}}}") == 0.0


@installed
@pytest.mark.parametrize("bomb", BOMBS, ids=lambda bomb: bomb[:12])
def test_every_bomb_ends_and_scores_zero(bomb: str):
    score = score_answer("12", rf"\boxed{{{bomb}}}", functools.partial(MATH.pool.compare, timeout_s=0.5))
    assert score.value == 0.0


@installed
def test_the_limit_holds_in_a_thread_and_in_another_process():
    found: list[float] = []
    thread = threading.Thread(target=lambda: found.append(value("12", r"\boxed{9^{9^{9^9}}}")))
    patient = Math(timeout_s=60.0)  # the other process has to start a comparer
    task = Task(id="t", domain="math", answer="12")
    process = multiprocessing.get_context("fork").Process(target=patient.score, args=(task, r"\boxed{x}"))
    thread.start()
    thread.join(HANG_S)
    assert found == [0.0]
    process.start()
    process.join(HANG_S)
    assert process.exitcode == 0


@with_data
def test_golds_of_word_problems_are_right_in_ten_forms_and_wrong_when_changed():
    answers = [gold for name in WORDED for gold in data(name)[::40]]
    assert len(answers) > 200
    for gold in answers:
        forms = [score_answer(gold, form, never_asked).value for form in surface_forms(gold)]
        others = [score_answer(gold, form, never_asked).value for form in surface_forms(change_number(gold))]
        assert (forms, others) == ([1.0] * 10, [0.0] * 10), gold


@with_data
def test_every_deepmath_gold_equals_itself_by_reading():
    wrong = [
        gold for gold in data("deepmath5k_train") if score_answer(gold, rf"\boxed{{{gold}}}", never_asked).value != 1
    ]
    assert wrong == []


@with_data
def test_reading_alone_takes_no_gold_for_another():
    pairs = list(mismatched_golds(data("deepmath5k_train"), 5000))
    accepted = [pair for pair in pairs if score_answer(*pair, lambda gold, said: Verdict.DIFFERENT).value]
    assert len(accepted) < 0.005 * len(pairs), accepted


@with_data
def test_there_are_rules_for_more_than_300_deepmath_golds():
    assert len({pair[0] for _, pair in rewrite_notations(data("deepmath5k_train"))}) > 300


@pytest.mark.sweep
@installed
@with_data
def test_golds_in_another_notation_are_right_and_mixed_up_ones_are_not():
    answers = data("deepmath5k_train")
    pairs = random.Random(1).sample([pair for _, pair in rewrite_notations(answers)], 100)
    refused = [pair for pair in pairs if value(*pair) != 1.0]
    assert refused == []
    accepted = [pair for pair in itertools.islice(mismatched_golds(answers, 200, seed=1), 200) if value(*pair) == 1.0]
    assert accepted == []
