"""Masks of trajectories."""

from roll.algorithms.masks import difficulty, overlong_wrong, truncated
from tests.algorithms.build import batch


def test_truncated_trajectories_are_masked():
    example = batch([1, 1, 1], (1, 1, 1), truncated=[False, True, False])
    assert truncated(example).tolist() == [True, False, True]


def test_groups_that_are_all_right_or_all_wrong_are_masked_in_any_order():
    # group 4 is all wrong, group 9 all right, group 1 half and half
    example = batch([1] * 6, (1,) * 6, rewards=[0.0, 1.0, 1.0, 0.0, 0.0, 1.0], group=[4, 9, 1, 4, 1, 9])
    assert difficulty(example).tolist() == [False, False, True, False, True, False]


def test_the_bounds_of_difficulty_are_exclusive():
    example = batch([1] * 4, (1,) * 4, rewards=[0.25, 0.5, 0.75, 0.6], group=[0, 1, 2, 3])
    assert difficulty(example, low=0.25, high=0.75).tolist() == [False, True, False, True]


def test_only_trajectories_both_too_long_and_wrong_are_masked():
    # 3 trained tokens over two rows and wrong; 3 and right; 2 and wrong
    example = batch(
        [0, 1, 1, 0, 1, 0, 1, 1, 1, 0, 0, 1, 1], (3, 2, 4, 4), trajectory=[0, 0, 1, 2], rewards=[0.0, 1.0, 0.0]
    )
    assert overlong_wrong(example, max_tokens=2).tolist() == [False, True, True]
    assert overlong_wrong(example, max_tokens=3).tolist() == [True, True, True]
    assert overlong_wrong(example, max_tokens=2, right=0.0).tolist() == [True, True, True]
