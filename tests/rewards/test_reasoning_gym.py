"""Responses to procedural tasks: the package's own scorers, kept from running what a response says."""

import gzip
import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import pytest

from roll.errors import ConfigError
from roll.rewards.reasoning_gym import _arithmetic, _formula, _grid, score
from roll.types import Message, Task

INSTALLED = importlib.util.find_spec("reasoning_gym") is not None
needs_package = pytest.mark.skipif(not INSTALLED, reason="the package reasoning-gym is not installed")


def task(name: str = "countdown", answer: str | None = None, index: int = 0) -> Task:
    return Task(
        id="t", domain="d", answer=answer, metadata={"task": name, "rg": {"seed": 1, "size": 5, "index": index}}
    )


@pytest.mark.parametrize(
    "metadata", [{}, {"task": "x"}, {"task": "x", "rg": {"seed": 1}}, {"rg": {"seed": 1, "size": 1, "index": 0}}]
)
def test_a_task_that_names_no_entry_is_refused(metadata: dict[str, Any]):
    with pytest.raises(ConfigError, match=r"task 't': .*rg"):
        score(Task(id="t", domain="d", metadata=metadata), "4")


def test_a_composite_is_refused_as_it_hides_whose_scorer_runs():
    with pytest.raises(ConfigError, match="composite"):
        score(task("composite"), "4")


@pytest.mark.skipif(INSTALLED, reason="the package reasoning-gym is installed")
def test_without_the_package_it_says_how_to_install_it():
    with pytest.raises(ConfigError, match="pip install reasoning-gym"):
        score(task(), "4")


def test_answers_that_are_programs_are_not_evaluated():
    programs = [
        "__import__('os').system('x')",
        "open('/etc/passwd')",
        "[x for x in y]",
        "f'{x()}'",
        "9**9**9**9",
        "print(1)",
    ]
    for plain in (_grid, _arithmetic, _formula):
        assert [program for program in programs if plain(program)] == []


@pytest.mark.parametrize(
    "answer",
    [
        "9**9**9",
        "9**999",
        "((9**99)**99)",
        "(((((9)**9)**9)**9)**9)",
        "x**y",
        "9 ** 9 ** 9",
        "1" * 16,
        "x.y",
        "a_b",
        "S(1)",
        "9**(9**9)",
    ],
)
def test_formulas_that_grow_without_bound_are_not_evaluated(answer: str):
    assert not _formula(answer)


@pytest.mark.parametrize(
    "answer",
    ["-4*X**10 - 5*X/2 + C", "-2*(9 - 10*x)**(3/2)/3 + C", "3*exp(6*x**2 - 5*x + 5) + C", "x*sin(x)/0.5", "x**(-1)"],
)
def test_formulas_that_are_answers_are(answer: str):
    assert _formula(answer)


def test_arithmetic_and_grids_that_are_answers_are_evaluated():
    assert _arithmetic("30*(92 + 56 + 43)/10 - 10")
    assert not _arithmetic("2**3")
    assert _grid("_ _ Q\nQ _ _")
    assert _grid("[[1, 2], [3, 4]]")
    assert _grid("['A', 'B']")


@needs_package
def test_the_datasets_own_scorer_judges():
    import reasoning_gym

    entry = reasoning_gym.create_dataset("countdown", seed=1, size=5)[0]
    assert score(task(answer=entry["answer"]), f"<think>x</think><answer>{entry['answer']}</answer>").value == 1.0
    assert score(task(), "1+1").value < 0.1
    assert score(task(), "9" * 20_000).value == 0.0


@needs_package
def test_a_response_that_the_scorer_cannot_read_scores_0():
    assert score(task("prime_factorization"), "two times three").value == 0.0


@needs_package
def test_another_answer_than_the_packages_an_unknown_dataset_or_entry_is_refused():
    with pytest.raises(ConfigError, match="another entry"):
        score(task(answer="no"), "4")
    with pytest.raises(ConfigError, match="'no_such'"):
        score(task("no_such"), "4")
    with pytest.raises(ConfigError, match="no entry 5"):
        score(task(index=5), "4")


@needs_package
@pytest.mark.skipif("ROLL_DATA" not in os.environ, reason="ROLL_DATA names no folder with data")
def test_real_answers_are_right():
    names = ["countdown", "puzzle24", "spiral_matrix", "binary_matrix", "n_queens", "string_insertion", "chain_sum",
             "simple_integration", "word_ladder", "intermediate_integration"]  # fmt: skip
    with gzip.open(Path(os.environ["ROLL_DATA"]) / "reasoning" / "reasoning_gym_test.jsonl.gz", "rt") as lines:
        rows = [row for line in lines if (row := json.loads(line))["task"] in names]
    assert len(rows) >= 90
    for row in rows[::3]:
        messages = (Message("user", row["prompt"]),)  # of a word ladder's several answers, any may be drawn
        metadata = {"task": row["task"], "rg": row["rg"]}
        made = Task(id=row["id"], domain="d", messages=messages, answer=row["answer"], metadata=metadata)
        assert score(made, f"<answer>{row['answer']}</answer>").value == 1.0, row["id"]
