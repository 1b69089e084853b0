"""The corpus of surface forms for the reward `math`: every row has its expected score."""

import importlib.util
import re
from pathlib import Path

import pytest

from benchmarks.surface_forms.math import rows
from benchmarks.surface_forms.row import Row, read_rows
from roll.rewards.math.reward import Math
from roll.types import Task

CORPUS = Path(__file__).parent / "corpus" / "math.jsonl"
PROSE = Path(__file__).parent / "corpus" / "math_prose.jsonl"
"""Replies written by hand."""
REPORTED = [
    Row(verifier="math", kind="reported", answer=answer, response=response, expected=expected)
    for answer, response, expected in (
        ("72", "**72** clips", 1.0),
        ("1,-2", "<answer>1,-2</answer>", 1.0),
        ("2k+2", "<answer>2k+2</answer>", 1.0),
        (r"\log_2 3", r"The answer is $\log_2 3$.", 1.0),
        (r"864 \mbox{ inches}^2", r"\boxed{864}", 1.0),
        ("7", "<answer>3, 5, 7</answer>", 0.0),
        ("528", "The answer is 52_8.", 0.0),
        ("23", "The answer is 2*3.", 0.0),
        ("72", "not 72", 0.0),
        ("72", r"\boxed{72 \text{ thousand}}", 0.0),
        ("72000", r"\boxed{72 \text{ thousand}}", 1.0),
        ("72", r"\boxed{72\mathrm{i}}", 0.0),
        ("3/4", r"\boxed{\frac{3}{4}\%}", 0.0),
    )
]
"""Forms that held-out data showed to be scored wrongly."""


def test_the_generator_makes_as_many_distinct_replies_as_a_benchmark_needs():
    made = list(rows(15_000, 0))
    assert len({(row.answer, row.response) for row in made}) == 15_000
    assert {row.kind for row in made} == {"boxed", "unboxed", "negation", "correction"}


def test_the_corpus_has_no_contradictions():
    corpus = [*read_rows(CORPUS), *read_rows(PROSE)]
    assert len(corpus) >= 2_000
    assert len({(row.answer, row.response) for row in corpus}) == len(corpus)
    assert all(re.search(r"\w", row.response) and row.expected in (0.0, 1.0) for row in corpus)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("math_verify") is None, reason="math-verify is not installed")
def test_every_row_of_the_corpus_has_its_score():
    reward = Math(timeout_s=10.0)
    reward.start()
    wrong = [
        (row.answer, row.response, row.expected)
        for row in (*REPORTED, *read_rows(CORPUS), *read_rows(PROSE))
        if reward.score(Task(id="t", domain="math", answer=row.answer), row.response).value != row.expected
    ]
    reward.stop()
    assert wrong == []
