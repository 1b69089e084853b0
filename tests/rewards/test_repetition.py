"""The share of a response that is new."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roll.errors import ConfigError
from roll.rewards.text import repetition
from roll.types import Task

TASK = Task(id="t", domain="d")


def test_runs_that_occurred_before_are_taken_off():
    # a b c, b c a, c a b, a b c: three of four are new
    assert repetition(TASK, "a b c a b c").value == 0.75
    assert repetition(TASK, "a b c d e").value == 1.0
    assert repetition(TASK, "a a a a a", n=1).value == 0.2
    assert repetition(TASK, "x " * 102).value == 0.01  # 100 runs, one of them new


def test_characters_may_be_counted():
    assert repetition(TASK, "哈哈哈哈哈", n=2, unit="characters").value == 0.25


@pytest.mark.parametrize("text", ["我喜欢学习", "ฉันชอบเรียน", "わたしは", "abc", "the,", "la-", "xyz\u200b"])
def test_text_without_spaces_that_repeats_scores_near_zero(text: str):
    assert repetition(TASK, text * 100).value < 0.1


def test_text_without_spaces_that_does_not_repeat_scores_one():
    assert repetition(TASK, "春眠不觉晓处处闻啼鸟").value == 1.0
    assert repetition(TASK, "see https://example.org/ab/cdefgh-ijklmn/opqr1234567890 for more").value > 0.9
    # 哈哈哈 three times of 哈哈哈哈哈: one of three is new
    assert repetition(TASK, "哈哈哈哈哈").value == pytest.approx(1 / 3)


@pytest.mark.parametrize("response", ["", "a", "a b", "a b c"])
def test_a_short_response_repeats_nothing(response: str):
    assert repetition(TASK, response).value == 1.0


@pytest.mark.parametrize("options", [{"n": 0}, {"n": 21}, {"unit": "tokens"}])
def test_runs_of_no_length_are_refused(options: Any):
    with pytest.raises(ConfigError, match="reward 'repetition'"):
        repetition(TASK, "x", **options)


@pytest.mark.slow
@settings(derandomize=True, max_examples=100, deadline=None)
@given(st.lists(st.sampled_from("abc"), min_size=4))
def test_saying_it_all_twice_scores_less(words: list[str]):
    text = " ".join(words)
    assert 0.0 < repetition(TASK, f"{text} {text}").value <= (len(words) + 2) / (2 * len(words) - 2)
    assert repetition(TASK, f"{text} {text} {text}").value < repetition(TASK, f"{text} {text}").value
