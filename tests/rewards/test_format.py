"""Thinking and answer, each between its tags."""

import pytest

from roll.errors import ConfigError
from roll.rewards.text import tag_format
from roll.types import Score, Task

TASK = Task(id="t", domain="d")
GOOD = "<think>so\nand so</think>\n<answer>4</answer>"


@pytest.mark.parametrize("response", [GOOD, f"  {GOOD}\n", "<think></think><answer>4</answer>"])
def test_thinking_then_an_answer_is_right(response: str):
    assert tag_format(TASK, response) == Score(1.0, {"thinking": 1.0, "answer": 1.0})


@pytest.mark.parametrize(
    ("response", "thinking", "answer"),
    [
        ("", 0, 0),
        ("4", 0, 0),
        ("<answer>4</answer>", 0, 1),
        ("<think>x</think>4", 1, 0),
        ("<think>x</think><answer> </answer>", 1, 0),
        (f"Well: {GOOD}", 1, 1),
        (f"{GOOD} Done.", 1, 1),
        ("<think>x</think> so <answer>4</answer>", 1, 1),
        (GOOD + GOOD, 0, 0),
        ("<think>x</think><answer>4</answer><answer>5</answer>", 1, 0),
        ("<think><think>x</think></think><answer>4</answer>", 0, 1),
        ("<answer>4</answer><think>x</think>", 1, 0),
        ("<think><answer>4</answer></think>", 1, 0),
        ("<think>x</think><answer>4", 1, 0),
        ("</think>x<think><answer>4</answer>", 0, 1),
    ],
)
def test_any_other_format_scores_zero_and_parts_say_which_tags_are_there(response: str, thinking: int, answer: int):
    assert tag_format(TASK, response) == Score(0.0, {"thinking": thinking, "answer": answer})


def test_tags_have_the_names_they_are_given():
    assert tag_format(TASK, "<r>x</r><a>4</a>", thinking="r", answer="a").value == 1.0
    assert tag_format(TASK, GOOD, thinking="r", answer="a").value == 0.0


def test_the_prompt_may_have_opened_the_thinking():
    assert tag_format(TASK, "x</think><answer>4</answer>", thinking_opened=True).value == 1.0
    assert tag_format(TASK, GOOD, thinking_opened=True).value == 0.0


@pytest.mark.parametrize(("thinking", "answer"), [("", "a"), ("a", " "), ("a", "a")])
def test_equal_or_empty_tags_are_refused(thinking: str, answer: str):
    with pytest.raises(ConfigError, match="name two different ones"):
        tag_format(TASK, GOOD, thinking=thinking, answer=answer)
