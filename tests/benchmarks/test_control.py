"""The control's advantages keep the rewards but permute them over the attempts."""

from dataclasses import replace
from types import ModuleType

import pytest
import torch

from benchmarks import learn_frozen_lake, learn_sokoban, learn_tic_tac_toe, learning
from benchmarks.control import shuffled, shuffled_turns
from roll.algorithms.advantages import gigpo, group_normalised
from roll.config.load import load
from roll.config.section import SpecConfig
from roll.types import Batch
from tests.algorithms.build import batch


def attempts(rewards: torch.Tensor, group: torch.Tensor) -> Batch:
    """One trained token per attempt, so that advantages per token are advantages per attempt."""
    return batch([1] * len(rewards), (1,) * len(rewards), rewards=rewards, group=group)


def test_rewards_are_permuted_over_the_whole_batch() -> None:
    group = torch.arange(2).repeat_interleave(64)
    rewards = (group == 0).float()  # all of one group right, all of the other wrong: nothing to learn within a group
    original = attempts(rewards, group)
    assert group_normalised(original).abs().sum() == 0
    advantages = shuffled(original)
    assert advantages.shape == rewards.shape
    assert advantages[:64].unique().numel() == 2
    assert advantages[64:].unique().numel() == 2


def test_advantages_are_normalised_within_each_group_after_the_shuffle() -> None:
    original = attempts(torch.arange(128).float(), torch.arange(4).repeat_interleave(32))
    advantages = shuffled(original, seed=3).view(4, 32)
    torch.testing.assert_close(advantages.mean(1), torch.zeros(4), atol=1e-6, rtol=0)
    torch.testing.assert_close(advantages.var(1, correction=0), torch.ones(4), atol=1e-4, rtol=0)


def test_an_advantage_is_uncorrelated_with_the_reward_of_its_attempt() -> None:
    rewards = torch.rand(1024, generator=torch.Generator().manual_seed(0))
    original = attempts(rewards, torch.arange(32).repeat_interleave(32))
    together = torch.stack([shuffled(original), group_normalised(original)])
    assert abs(float(torch.corrcoef(together)[0, 1])) < 0.1  # 1 without the shuffle; chance is about 0.03


def test_all_tokens_of_an_attempt_have_one_advantage_and_untrained_tokens_zero() -> None:
    original = batch([0, 1, 1, 0, 1], (3, 2), rewards=[0.0, 1.0])
    advantages = shuffled(original)
    assert advantages[1] == advantages[2] == -advantages[4]
    assert advantages[[0, 3]].tolist() == [0.0, 0.0]


def test_the_seed_decides_the_shuffle() -> None:
    original = attempts(torch.arange(64).float(), torch.zeros(64, dtype=torch.long))
    assert torch.equal(shuffled(original, seed=1), shuffled(original, seed=1))
    assert not torch.equal(shuffled(original, seed=1), shuffled(original, seed=2))


def test_turns_get_the_permuted_reward_of_their_attempt() -> None:
    rewards = torch.rand(256, generator=torch.Generator().manual_seed(0))
    original = replace(
        attempts(rewards, torch.arange(16).repeat_interleave(16)),
        turn_rewards=rewards,
        turn_states=torch.zeros(256, dtype=torch.long),
    )
    advantages = shuffled_turns(original)
    torch.testing.assert_close(
        advantages, 2 * shuffled(original)
    )  # all in one state, so turns are compared like attempts
    assert abs(float(torch.corrcoef(torch.stack([advantages, gigpo(original)]))[0, 1])) < 0.2  # 1 without the shuffle


@pytest.mark.parametrize("benchmark", [learning, learn_frozen_lake, learn_sokoban, learn_tic_tac_toe])
def test_the_control_differs_from_the_experiment_in_its_advantage_alone(benchmark: ModuleType) -> None:
    experiment, control = (load(benchmark.EXAMPLE, changes).run for changes in ([], [benchmark.CONTROL]))
    assert isinstance(control.algorithm.advantage, SpecConfig)
    assert control.algorithm.advantage.kind.startswith("benchmarks.control:")
    advantage = {"advantage": experiment.algorithm.advantage}
    same = control.model_copy(update={"algorithm": control.algorithm.model_copy(update=advantage)})
    assert same == experiment and same.algorithm.num_updates == experiment.algorithm.num_updates
