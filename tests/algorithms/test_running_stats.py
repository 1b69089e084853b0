"""Running mean and deviation, computed by hand."""

import math

import torch

from roll.algorithms.shaping import RunningStats


def test_the_deviation_of_no_rewards_is_zero():
    assert RunningStats().std(unbiased=False) == RunningStats().std(unbiased=True) == 0.0
    assert RunningStats().after(torch.zeros(0)) == RunningStats()


def test_the_mean_and_the_squared_deviations_are_accumulated():
    # 1, 3, 8: mean 4, squares 9 + 1 + 16
    result = RunningStats().after(torch.tensor([1.0, 3.0, 8.0]))
    assert result == RunningStats(count=3, mean=4.0, sum_squares=26.0)
    assert result.std(unbiased=False) == math.sqrt(26 / 3)
    assert result.std(unbiased=True) == math.sqrt(13)


def test_parts_add_up_to_the_whole():
    # 2, 4 (mean 3, squares 2), then 9, 9, 11, 1 (mean 7.5): together mean 6, squares 16 + 4 + 9 + 9 + 25 + 25
    result = RunningStats().after(torch.tensor([2.0, 4.0])).after(torch.tensor([9.0, 9.0, 11.0, 1.0]))
    assert (result.count, result.mean) == (6, 6.0)
    assert math.isclose(result.sum_squares, 88.0, rel_tol=1e-12)


def test_equal_rewards_deviate_by_exactly_nothing_over_many_batches():
    result = RunningStats()
    for num in (3, 7, 10):
        result = result.after(torch.full((num,), 0.1))
    assert result.std(unbiased=True) == 0.0
    assert result.mean == torch.tensor(0.1).double().item()


def test_a_small_spread_about_a_large_mean_is_not_lost():
    result = RunningStats()
    for _ in range(100):
        result = result.after(torch.tensor([1e6 - 1, 1e6 + 1]))
    assert math.isclose(result.std(unbiased=False), 1.0, rel_tol=1e-9)
