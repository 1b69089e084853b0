"""Advantage weights, computed by hand."""

import torch

from roll.algorithms.advantage_weights import difficulty, length
from tests.algorithms.build import batch


def test_hard_groups_weigh_more():
    # group 3 has mean 0.25, group 1 mean 1
    example = batch([1] * 6, (1,) * 6, rewards=[0.0, 1.0, 1.0, 0.0, 1.0, 0.0], group=[3, 1, 3, 3, 1, 3])
    assert difficulty(example).tolist() == [1.75, 1.0, 1.75, 1.75, 1.0, 1.75]
    assert difficulty(example, strength=2.0).tolist() == [2.5, 1.0, 2.5, 2.5, 1.0, 2.5]


def test_mean_rewards_outside_0_and_1_are_clipped():
    example = batch([1, 1], (1, 1), rewards=[-3.0, 5.0], group=[0, 1])
    assert difficulty(example).tolist() == [2.0, 1.0]


def test_long_trajectories_weigh_less_counting_all_their_rows():
    # trained lengths 3 (over two rows) and 1: mean 2
    example = batch([0, 1, 1, 0, 1, 0, 1], (3, 2, 2), trajectory=[0, 0, 1])
    torch.testing.assert_close(length(example), torch.tensor([2 / 3, 2.0]))
    torch.testing.assert_close(length(example, power=2.0), torch.tensor([4 / 9, 4.0]))
    assert length(example, power=0.0).tolist() == [1.0, 1.0]


def test_a_trajectory_without_trained_tokens_neither_counts_nor_divides_by_zero():
    assert length(batch([1, 1, 1, 0], (2, 1, 1))).tolist() == [0.75, 1.5, 1.0]
    assert length(batch([0, 0], (1, 1))).tolist() == [1.0, 1.0]


def test_advantage_weights_are_single_precision():
    example = batch([1, 1], (1, 1))
    assert difficulty(example).dtype == length(example).dtype == torch.float32
