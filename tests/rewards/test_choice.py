"""The multiple-choice verifier: which option a response commits to."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from roll.errors import ConfigError
from roll.rewards.choice import score
from roll.types import Task

pytestmark = pytest.mark.slow

OPTIONS = ["A)32,400", "B)6000", "C)Vitamin D", "D)600 m", "E)None of these"]


def right(answer: Any, response: str, options: Any = OPTIONS) -> bool:
    return score(Task(id="t", domain="d", answer=answer, metadata={"options": options}), response).value == 1.0


@pytest.mark.parametrize(
    "response",
    [
        "B",
        " b. ",
        "(B)",
        "B)",
        "**B**",
        "B. 6000",
        "B) 6000.",
        "6000",
        "6,000",
        r"\boxed{B}",
        r"Hence $\boxed{\text{(B)}}$, as was asked.",
        r"\boxed{B) 6000}",
        r"\boxed{6000}",
        "The answer is (B).",
        "The answer is B because A is too small. C is not even a number.",
        "the correct option is b",
        "The final answer is:\n\n**B**",
        "Answer: B",
        "**Answer:** B) 6000",
        "The answer is 6000. That took three steps.",
        "The answer is indeed B.",
        "A house has no speed. So it must be (B).",
        "Reasons, then\nB",
        "So it must be B, not A.",
        "So B is right.",
        "<think>A? C? The answer is C.</think>The answer is B",
        "<think>hm</think><answer>B</answer>",
        "The answer is A. Wait, no: the answer is B.",
        r"First \boxed{A}, but no: \boxed{B}.",
        r"\boxed{A} was wrong. The answer is B.",
        "The answer is (B). Every other option is wrong.",
        "答案是B\u3002",
        "故选\uff1a\uff08\uff22\uff09",
    ],
)
def test_the_last_option_stated_counts(response: str):
    assert right("B", response)
    assert not right("A", response)
    assert not right("C", response)


@pytest.mark.parametrize(
    "response",
    [
        "",
        "The answer is A or B",
        "The answer is either A or B.",
        "Answer: A, B",
        "Answer: (A) and (B)",
        "A\nB",
        "A B C D E",
        r"\boxed{A} or \boxed{B}",
        r"\boxed{A, B}",
        "B) 32400",  # the letter of one, the text of another
        "The answer is not B",
        "<think>The answer is B",
        "Answer: X",
        "Bees",
        "\n".join(OPTIONS),
        "I have no idea, a guess would be wrong.",
    ],
)
def test_several_options_at_once_or_none_are_wrong(response: str):
    assert not any(right(letter, response) for letter in "ABCDE")


def test_letters_within_an_options_text_are_not_letters():
    assert right("C", "The answer is vitamin D.")
    assert right("C", "C) Vitamin D")
    assert not right("D", "The answer is Vitamin D")


def test_options_may_be_bare_texts_or_a_mapping_and_the_answer_a_text():
    assert right("red", "The answer is B", ["blue", "red"])
    assert right("B", "red", {"A": "blue", "B": "red"})
    assert right("(b)", "B", {"a": "blue", "b": "red"})
    assert not right("red", "A", ["blue", "red"])


def test_a_text_that_two_options_share_names_neither():
    assert not right("A", "red", ["red", "red"])
    assert right("A", "A", ["red", "red"])


def test_without_options_letters_up_to_j_count():
    assert right("J", "Answer: J", None)
    assert not right("A", "K", None)


@pytest.mark.parametrize(
    ("answer", "options"),
    [(None, OPTIONS), ("F", OPTIONS), ("6001", OPTIONS), ("red", None), ("A", "AB"), ("A", ["x"])],
)
def test_a_task_without_options_or_with_an_answer_that_is_none_is_refused(answer: Any, options: Any):
    with pytest.raises(ConfigError, match=r"task 't': .*\(got .*\); "):
        right(answer, "A", options)


@pytest.mark.parametrize(
    "bomb",
    [
        r"\boxed{A}" * 100_000,
        "answer is " * 100_000,
        "A " * 500_000,
        "\n" * 10**6,
        r"\text{" * 150_000,
        "答案" * 300_000,
    ],
)
def test_no_response_is_expensive(bomb: str):
    start = time.thread_time()
    right("B", bomb)
    assert time.thread_time() - start < 20.0  # linear takes some tenths


@pytest.mark.skipif("ROLL_DATA" not in os.environ, reason="ROLL_DATA names no folder with data")
def test_every_real_option_is_recognised_and_no_other():
    for line in (Path(os.environ["ROLL_DATA"]) / "reasoning" / "aqua_test.jsonl").open(encoding="utf-8"):
        row = json.loads(line)
        for option in row["options"]:
            letter, text = option[0], option[2:]
            for response in (f"So the answer is {letter}.", f"{letter}) {text}", rf"\boxed{{{letter}}}"):
                twins = [other for other in row["options"] if other[2:] == text]
                assert right(row["answer"], response, row["options"]) == (letter == row["answer"]) or len(twins) > 1, (
                    row,
                    response,
                )
