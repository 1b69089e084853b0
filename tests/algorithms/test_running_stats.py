"""Running mean and deviation, worked by hand."""

import math

import torch

from roll.algorithms.running_stats import Moments


def test_nothing_seen_has_no_deviation():
    assert Moments().std(unbiased=False) == Moments().std(unbiased=True) == 0.0
    assert Moments().after(torch.zeros(0)) == Moments()


def test_the_mean_and_the_squares_about_it_are_kept():
    # 1, 3, 8: mean 4, squares 9 + 1 + 16
    found = Moments().after(torch.tensor([1.0, 3.0, 8.0]))
    assert found == Moments(count=3, mean=4.0, square=26.0)
    assert found.std(unbiased=False) == math.sqrt(26 / 3)
    assert found.std(unbiased=True) == math.sqrt(13)


def test_parts_add_up_to_the_whole():
    # 2, 4 (mean 3, squares 2), then 9, 9, 11, 1 (mean 7.5): together mean 6, squares 16 + 4 + 9 + 9 + 25 + 25
    found = Moments().after(torch.tensor([2.0, 4.0])).after(torch.tensor([9.0, 9.0, 11.0, 1.0]))
    assert (found.count, found.mean) == (6, 6.0)
    assert math.isclose(found.square, 88.0, rel_tol=1e-12)


def test_equal_rewards_deviate_by_exactly_nothing_over_many_batches():
    found = Moments()
    for num in (3, 7, 10):
        found = found.after(torch.full((num,), 0.1))
    assert found.std(unbiased=True) == 0.0
    assert found.mean == torch.tensor(0.1).double().item()


def test_a_small_spread_about_a_large_mean_is_not_lost():
    found = Moments()
    for _ in range(100):
        found = found.after(torch.tensor([1e6 - 1, 1e6 + 1]))
    assert math.isclose(found.std(unbiased=False), 1.0, rel_tol=1e-9)
