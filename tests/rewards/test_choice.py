"""The multiple-choice verifier: which option a response commits to."""

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.surface_forms.choice import rows
from benchmarks.surface_forms.row import Row, read_rows
from roll.errors import ConfigError
from roll.rewards.choice.reward import answer_of, score
from roll.types import Message, Task

pytestmark = pytest.mark.slow

CORPUS = Path(__file__).parent / "corpus"
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


def verdict(row: Row, answer: str) -> float:
    return score(Task(id="t", domain="d", answer=answer, metadata={"options": list(row.options)}), row.response).value


@pytest.mark.parametrize("file", ["choice.jsonl", "choice_prose.jsonl"])
def test_every_row_of_the_corpus_has_its_expected_score(file: str):
    corpus = read_rows(CORPUS / file)
    assert len(corpus) >= 800
    assert [row for row in corpus if verdict(row, row.answer) != row.expected] == []


def test_a_reply_that_commits_to_one_option_scores_for_no_other():
    for row in read_rows(CORPUS / "choice_prose.jsonl"):
        if row.expected:
            others = [letter for letter in "ABCDE"[: len(row.options)] if letter != row.answer]
            assert [letter for letter in others if verdict(row, letter)] == [], row


def test_the_generator_makes_many_different_rows_and_the_same_ones_again():
    made = list(rows(5_000, 3))
    assert len({(row.response, row.options, row.answer) for row in made}) == 5_000
    assert len({row.response for row in made}) > 3_000
    assert made[:50] == list(rows(50, 3))
    assert {row.expected for row in made} == {0.0, 1.0}


@pytest.mark.sweep
def test_replies_of_another_seed_are_misread_in_at_most_one_of_two_hundred():
    made = list(rows(4_000, 77))
    misread = [row for row in made if verdict(row, row.answer) != row.expected]
    assert sum(row.expected for row in misread) <= 0.005 * sum(row.expected for row in made)
    assert len(misread) <= 0.005 * len(made)


@pytest.mark.parametrize(
    ("options", "response", "letter"),
    [
        (["-5", "7", "3", "2"], "The answer is 5", None),
        (["-5", "7", "3", "2"], "The answer is -5", "A"),
        (["0.65", "-0.65", "6.5"], "-0.65", "B"),
        (["0.65", "-0.65", "6.5"], "0.65", "A"),
        (["(1,2)", "[1,2]", "(1,2]"], "[1, 2]", "B"),
        (["(1,2)", "[1,2]", "(1,2]"], r"\boxed{(1,2]}", "C"),
        (["BB", "Bb", "bb"], "Bb", "B"),
        (["Don't go", "Go"], "Don\u2019t go", "A"),
        (["\uff21\uff22\uff23", "DEF"], "abc", "A"),
        (["10 m", "10 m/s", "10"], "The answer is 10 m/s.", "B"),
    ],
)
def test_option_texts_keep_their_signs_brackets_and_case_where_they_differ(
    options: list[str], response: str, letter: str | None
):
    assert [other for other in "ABCD"[: len(options)] if right(other, response, options)] == (
        [letter] if letter else []
    )


def test_a_rejection_of_the_claimed_option_withdraws_it_unless_the_question_asks_for_the_wrong_one():
    response = "B\n\nOption B is incorrect because the unit is wrong."
    question = Message(role="user", content="Which statement is incorrect?")
    task = Task(id="t", domain="d", answer="B", metadata={"options": OPTIONS})
    assert score(task, response).value == 0.0
    assert score(replace(task, messages=(question,)), response).value == 1.0


def test_true_and_false_are_no_verdicts_on_the_options_of_a_negative_question():
    marks = ["False. It is red.", "True. It is blue.", "False. It is green."]
    response = "\n".join(f"{letter}) {text}: {mark}" for letter, text, mark in zip("ABC", "xyz", marks, strict=True))
    task = Task(id="t", domain="d", answer="B", metadata={"options": ["x", "y", "z"]})
    question = Message(role="user", content="Which statement is not true?")
    assert score(task, response).value == 1.0
    assert score(replace(task, messages=(question,)), response).value == 0.0
    assert score(replace(task, messages=(question,)), response.replace("True", "Correct")).value == 1.0


def test_prose_that_names_an_option_the_question_already_names_commits_to_nothing():
    options, response = ["Mars", "Venus", "Saturn"], "The planet is called Mars."
    task = Task(id="t", domain="d", answer="A", metadata={"options": options})
    listed = "What is the fourth planet called?\nA) Mars\nB) Venus\nC) Saturn"
    assert score(replace(task, messages=(Message("user", listed),)), response).value == 1.0
    named = "Is there a planet called Mars? What is the sixth one?\nA) Mars\nB) Venus\nC) Saturn"
    assert score(replace(task, messages=(Message("user", named),)), response).value == 0.0


def test_the_answer_for_a_majority_is_the_letter_else_the_text():
    assert answer_of("B\n\nUnlike A, it fits.") == "B"
    assert answer_of("The answer is A or B") is None
    assert answer_of("The answer is Paris.") == "paris"
    assert answer_of(r"So \boxed{12 m}") == "12 m"
    assert answer_of("") is None


def test_a_long_reply_without_line_breaks_is_read_at_both_ends():
    filler = "the rate is constant and so on " * 3_000
    assert right("B", "The answer is B. " + filler)
    assert right("B", filler + ". The answer is B.")


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
        "<thinking></thinking>" * 50_000,
        "<answer>" * 100_000,
        "B, not A. " * 100_000,
        "very " * 200_000,
        "(A" * 300_000,
        "{A" * 15_000,
        "32,400 A " * 3_000,
        "- " * 15_000,
        "A: wrong\n" * 3_000,
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


def test_a_copy_of_the_prompt_commits_to_nothing():
    prompt = "ann is taller than bob. who is taller?\nA) ann B) bob C) both"
    metadata = {"options": ["ann", "bob", "both"]}
    task = Task(id="t", domain="d", messages=(Message("user", prompt),), answer="A", metadata=metadata)
    assert score(task, prompt).value == 0.0
    assert score(task, f"{prompt}\n\nB) bob").value == 0.0
    assert score(task, f"{prompt}\n\nThe answer is A.").value == 1.0
