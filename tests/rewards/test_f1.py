"""Words in common between a response and the nearest of the answers."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roll.errors import ConfigError
from roll.rewards.text import f1
from roll.types import Score, Task

pytestmark = pytest.mark.slow


def found(answer: object, response: str, **options: float) -> Score:
    return f1(Task(id="t", domain="d", answer=answer), response, **options)


def test_case_punctuation_and_articles_do_not_count():
    assert found("The U.S. Navy", "us navy!") == Score(1.0, {"f1": 1.0, "exact": 1.0})


def test_words_are_counted_as_often_as_both_have_them():
    # shared: red, red; 3 words against 4: 2 * 2 / 7
    assert found("red red blue", "red red red green") == Score(4 / 7, {"f1": 4 / 7, "exact": 0.0})


def test_the_same_words_in_another_order_are_not_exact():
    assert found("Johnson Andrew", "Andrew Johnson") == Score(1.0, {"f1": 1.0, "exact": 0.0})


def test_the_nearest_alias_counts():
    assert found(["1998", "in 1996", "1996"], "1996").parts == {"f1": 1.0, "exact": 1.0}
    assert found(["one two three", "two"], "two three").value == 0.8  # 2 * 2 / 5, above 2 / 3


def test_a_threshold_makes_it_all_or_nothing():
    assert found("one two", "one", threshold=0.6).value == 1.0  # f1 is 2 / 3
    assert found("one two", "one", threshold=0.7).value == 0.0


def test_only_text_after_thinking_counts():
    assert found("Paris", "<think>London or Paris</think>Paris").value == 1.0
    assert found("Paris", "<think>Paris").value == 0.0
    assert found("Paris", "x <answer>Paris</answer> y").value == 1.0


def test_characters_of_unspaced_scripts_are_words():
    assert found("東京都", "東京").value == 0.8  # 2 * 2 / 5


def test_an_answer_of_nothing_but_articles_or_signs_is_not_matched_by_silence():
    assert found("The The", "the the").value == 1.0
    assert found("+", "+").value == 1.0
    assert found("The The", "").value == 0.0
    assert found("+", "").value == 0.0


def test_composed_and_decomposed_letters_are_the_same():
    assert found("caf\u00e9", "cafe\u0301").value == 1.0


@pytest.mark.parametrize("answer", [None, [], "", ["x", " "]])
def test_a_task_without_an_answer_is_refused(answer: object):
    with pytest.raises(ConfigError, match="'t': no answer"):
        found(answer, "x")


def test_a_threshold_out_of_range_is_refused():
    with pytest.raises(ConfigError, match=r"threshold .*\(got 0\)"):
        found("x", "x", threshold=0)


@settings(derandomize=True, max_examples=40, deadline=None)
@given(st.text(min_size=1).filter(str.strip), st.text())
def test_it_lies_between_0_and_1_and_an_answer_is_worth_1(answer: str, response: str):
    assert 0.0 <= found(answer, response).value <= 1.0
    assert found(answer, f"</think>{answer}").value == 1.0 or "<" in answer
