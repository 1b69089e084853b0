"""The control's advantages keep the rewards but not whose they are."""

from dataclasses import replace

import torch

from benchmarks.control import shuffled, shuffled_turns
from roll.algorithms.advantages import gigpo, group_normalised
from roll.types import Batch
from tests.algorithms.build import batch


def attempts(rewards: torch.Tensor, group: torch.Tensor) -> Batch:
    """One trained token an attempt, so that an advantage a token is one an attempt."""
    return batch([1] * len(rewards), (1,) * len(rewards), rewards=rewards, group=group)


def test_rewards_change_places_over_the_whole_batch() -> None:
    group = torch.arange(2).repeat_interleave(64)
    rewards = (group == 0).float()  # all of one group right, all of the other wrong: nothing to learn within a group
    given = attempts(rewards, group)
    assert group_normalised(given).abs().sum() == 0
    found = shuffled(given)
    assert found.shape == rewards.shape
    assert found[:64].unique().numel() == 2
    assert found[64:].unique().numel() == 2


def test_advantages_are_normalised_within_each_group_after_the_shuffle() -> None:
    given = attempts(torch.arange(128).float(), torch.arange(4).repeat_interleave(32))
    found = shuffled(given, seed=3).view(4, 32)
    torch.testing.assert_close(found.mean(1), torch.zeros(4), atol=1e-6, rtol=0)
    torch.testing.assert_close(found.var(1, correction=0), torch.ones(4), atol=1e-4, rtol=0)


def test_an_attempt_does_not_earn_by_its_own_reward() -> None:
    rewards = torch.rand(1024, generator=torch.Generator().manual_seed(0))
    given = attempts(rewards, torch.arange(32).repeat_interleave(32))
    together = torch.stack([shuffled(given), group_normalised(given)])
    assert abs(float(torch.corrcoef(together)[0, 1])) < 0.1  # 1 without the shuffle; chance is about 0.03


def test_an_attempts_tokens_earn_alike_and_untrained_ones_nothing() -> None:
    given = batch([0, 1, 1, 0, 1], (3, 2), rewards=[0.0, 1.0])
    found = shuffled(given)
    assert found[1] == found[2] == -found[4]
    assert found[[0, 3]].tolist() == [0.0, 0.0]


def test_the_seed_decides_the_shuffle() -> None:
    given = attempts(torch.arange(64).float(), torch.zeros(64, dtype=torch.long))
    assert torch.equal(shuffled(given, seed=1), shuffled(given, seed=1))
    assert not torch.equal(shuffled(given, seed=1), shuffled(given, seed=2))


def test_turns_earn_what_their_attempt_was_given_in_the_shuffle() -> None:
    rewards = torch.rand(256, generator=torch.Generator().manual_seed(0))
    given = replace(
        attempts(rewards, torch.arange(16).repeat_interleave(16)),
        turn_rewards=rewards,
        turn_states=torch.zeros(256, dtype=torch.long),
    )
    found = shuffled_turns(given)
    torch.testing.assert_close(found, 2 * shuffled(given))  # all in one state: turns are compared as attempts are
    assert abs(float(torch.corrcoef(torch.stack([found, gigpo(given)]))[0, 1])) < 0.2  # 1 without the shuffle
