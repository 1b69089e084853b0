"""Sums, and the numbers that no training problem contains."""

import pytest

from roll.data.arithmetic import held_out, sums
from roll.errors import ConfigError, UnknownName
from roll.types import Task


def operands(tasks: list[Task]) -> set[int]:
    return {int(number) for task in tasks for number in task.id.split("+")}


@pytest.mark.slow
def test_no_operand_of_a_held_out_problem_occurs_in_any_training_problem():
    unseen = operands(sums("held_out"))
    assert unseen
    for digits in (1, 2, 3):
        for seed in (0, 1):
            assert not unseen & operands(sums("train", digits=digits, seed=seed))


def test_a_quarter_of_the_numbers_below_a_hundred_is_held_out():
    assert operands(sums("held_out", count=625)) == {number for number in range(100) if held_out(number)}
    assert sum(held_out(number) for number in range(100)) == 25
    assert operands(sums("train")) == {number for number in range(100) if not held_out(number)}


def test_the_held_out_numbers_never_change():
    assert [number for number in range(40) if held_out(number)] == [1, 8, 9, 20, 29, 30, 36, 38]


def test_held_out_problems_are_five_hundred_and_distinct():
    assert len({task.id for task in sums("held_out")}) == len(sums("held_out")) == 500


def test_answers_are_reversed_sums_of_unpadded_numbers():
    for task in sums("train", count=50):
        left, right = task.id.split("+")
        assert task.messages[0].content == f"{left}+{right}=" and str(int(left)) == left
        assert int(task.answer[::-1]) == int(left) + int(right)


def test_answers_need_not_be_reversed():
    assert all(int(task.answer) == sum(map(int, task.id.split("+"))) for task in sums(reverse=False, count=20))


def test_the_seed_determines_the_problems_and_their_order():
    assert sums(count=20, seed=1) == sums(count=20, seed=1) != sums(count=20, seed=2)
    assert [task.id for task in sums(count=3)] == ["54+6", "59+92", "5+39"]


def test_an_unknown_split_is_refused():
    with pytest.raises(UnknownName, match="did you mean 'held_out'"):
        sums("heldout")


@pytest.mark.parametrize("wrong", [{"count": 0}, {"count": 5626}, {"digits": 0}, {"digits": 7}])
def test_impossible_counts_and_digits_are_errors(wrong: dict[str, int]):
    with pytest.raises(ConfigError, match=r"arithmetic: .* must be between 1 and"):
        sums(**wrong)  # pyright: ignore[reportArgumentType]
