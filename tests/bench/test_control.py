"""The control's advantages keep the rewards but not whose they are."""

import torch

from roll.algorithms.advantages import group_normalised
from roll.bench.control import shuffled


def test_rewards_change_places_over_the_whole_batch() -> None:
    group = torch.arange(2).repeat_interleave(64)
    rewards = (group == 0).float()  # all of one group right, all of the other wrong: nothing to learn within a group
    assert group_normalised(rewards, group).abs().sum() == 0
    found = shuffled(rewards, group)
    assert found.shape == rewards.shape
    assert found[:64].unique().numel() == 2
    assert found[64:].unique().numel() == 2


def test_advantages_are_normalised_within_each_group_after_the_shuffle() -> None:
    group = torch.arange(4).repeat_interleave(32)
    rewards = torch.arange(128).float()
    found = shuffled(rewards, group, seed=3).view(4, 32)
    torch.testing.assert_close(found.mean(1), torch.zeros(4), atol=1e-6, rtol=0)
    torch.testing.assert_close(found.var(1, correction=0), torch.ones(4), atol=1e-4, rtol=0)


def test_an_attempt_does_not_earn_by_its_own_reward() -> None:
    group = torch.arange(32).repeat_interleave(32)
    rewards = torch.rand(1024, generator=torch.Generator().manual_seed(0))
    together = torch.stack([shuffled(rewards, group), group_normalised(rewards, group)])
    assert abs(float(torch.corrcoef(together)[0, 1])) < 0.1  # 1 without the shuffle; chance is about 0.03


def test_the_seed_decides_the_shuffle() -> None:
    group, rewards = torch.zeros(64, dtype=torch.long), torch.arange(64).float()
    assert torch.equal(shuffled(rewards, group, seed=1), shuffled(rewards, group, seed=1))
    assert not torch.equal(shuffled(rewards, group, seed=1), shuffled(rewards, group, seed=2))
