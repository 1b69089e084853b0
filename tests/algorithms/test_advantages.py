"""Group statistics, worked by hand."""

import torch

from roll.algorithms.advantages import batch_centred, group_normalised


def test_rewards_are_measured_in_deviations_from_the_siblings_mean():
    # group 7: mean 2, squares 1 + 1, biased deviation 1; group 3: mean 1, squares 1 + 1 + 4, biased deviation sqrt(2)
    rewards = torch.tensor([1.0, 3.0, 0.0, 0.0, 3.0])
    group = torch.tensor([7, 7, 3, 3, 3])
    found = group_normalised(rewards, group, eps=0.0)
    torch.testing.assert_close(found, torch.tensor([-1.0, 1.0, -(0.5**0.5), -(0.5**0.5), 2.0**0.5]))


def test_the_unbiased_deviation_divides_by_one_less():
    found = group_normalised(torch.tensor([1.0, 3.0]), torch.tensor([0, 0]), unbiased=True, eps=0.0)
    torch.testing.assert_close(found, torch.tensor([-(0.5**0.5), 0.5**0.5]))  # deviation sqrt(2 / 1)


def test_without_scale_only_the_mean_is_subtracted():
    found = group_normalised(torch.tensor([1.0, 3.0, 8.0]), torch.tensor([0, 0, 1]), scale=False)
    assert found.tolist() == [-1.0, 1.0, 0.0]


def test_eps_is_added_to_the_deviation():
    found = group_normalised(torch.tensor([0.0, 2.0]), torch.tensor([0, 0]), eps=1.0)
    assert found.tolist() == [-0.5, 0.5]  # 1 / (1 + 1)


def test_a_group_of_equal_rewards_gets_exactly_zero():
    for num in (3, 7, 10):  # sums of 0.1 that do not divide back to 0.1 in single precision
        found = group_normalised(torch.full((num,), 0.1), torch.zeros(num, dtype=torch.int64), eps=0.0)
        assert found.tolist() == [0.0] * num


def test_a_group_of_one_gets_exactly_zero_and_never_nan():
    for unbiased in (False, True):
        found = group_normalised(torch.tensor([5.0, -2.0]), torch.tensor([0, 1]), unbiased=unbiased, eps=0.0)
        assert found.tolist() == [0.0, 0.0]


def test_siblings_are_found_by_id_wherever_they_stand():
    rewards = torch.tensor([1.0, 0.0, 3.0, 0.0, 3.0])
    group = torch.tensor([7, 3, 7, 3, 3])
    order = torch.tensor([4, 2, 0, 3, 1])
    torch.testing.assert_close(
        group_normalised(rewards, group)[order], group_normalised(rewards[order], group[order]), rtol=0, atol=0
    )
    torch.testing.assert_close(group_normalised(rewards, group, eps=0.0)[[0, 2]], torch.tensor([-1.0, 1.0]))


def test_batch_centred_subtracts_the_mean_of_all_trajectories():
    found = batch_centred(torch.tensor([0.0, 1.0, 5.0]), torch.tensor([0, 0, 1]))
    assert found.tolist() == [-2.0, -1.0, 3.0]


def test_advantages_stay_in_single_precision():
    rewards, group = torch.tensor([0.0, 1.0]), torch.tensor([0, 0])
    assert group_normalised(rewards, group).dtype == batch_centred(rewards, group).dtype == torch.float32
