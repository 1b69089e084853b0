"""Credit assignment: from rewards to one advantage and one weight per token."""

from dataclasses import replace

import pytest
import torch

from roll.algorithms.credit import AlgorithmState, assign_credit, minibatches, with_loss_weights, with_rewards
from roll.algorithms.recipe import Recipe
from roll.config.algorithm import Kl
from roll.config.section import SpecConfig
from roll.errors import ConfigError, UnknownName
from roll.types import Batch, Spec
from tests.algorithms.build import batch

CENTRED = Recipe(
    advantage=Spec("group_normalised", {"scale": False}), loss=Spec("clipped"), aggregation=Spec("token_mean")
)


def two_trajectories(**example: object) -> Batch:
    # trajectory 0 has two segments (rows 0 and 1), trajectory 1 has one (row 2); both are siblings
    return batch([0, 1, 0, 1, 0, 1, 1], (2, 2, 3), trajectory=[0, 0, 1], rewards=[3.0, 1.0], **example)


def credited(recipe: Recipe, whole: Batch | None = None, state: AlgorithmState | None = None) -> Batch:
    return assign_credit(two_trajectories() if whole is None else whole, recipe, state or AlgorithmState())[0]


def advantages(recipe: Recipe, whole: Batch | None = None) -> list[float]:
    result = credited(recipe, whole).advantages
    assert result is not None
    return result.tolist()


def test_an_advantage_lies_on_the_trained_tokens_of_its_trajectory_only() -> None:
    assert advantages(CENTRED) == [0.0, 1.0, 0.0, 1.0, 0.0, -1.0, -1.0]


def test_a_trajectory_counts_once_however_many_segments_it_has() -> None:
    result = advantages(replace(CENTRED, advantage=Spec("batch_centred")))
    assert result[1] == 1.0  # 3 - (3 + 1) / 2, not 3 - (3 + 3 + 1) / 3


def test_weights_of_a_careless_aggregation_are_masked() -> None:
    result = with_loss_weights(credited(CENTRED), Spec(f"{__name__}:careless")).weights
    assert result is not None
    assert result.tolist() == [0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 1.0]


def test_a_function_that_returns_the_wrong_shape_is_named() -> None:
    with pytest.raises(ConfigError, match=r"scalar.*shape \(7,\).*got \(\)"):
        credited(replace(CENTRED, advantage=Spec(f"{__name__}:scalar")))


def test_an_unknown_advantage_is_a_config_error() -> None:
    with pytest.raises(UnknownName, match="group_normalised"):
        credited(replace(CENTRED, advantage=Spec("group_normalized")))


def test_shaping_runs_in_order_and_its_change_belongs_to_the_last_turn() -> None:
    recipe = replace(CENTRED, shaping=(Spec("scaled", {"factor": 10.0}), Spec("clipped", {"low": 0.0, "high": 20.0})))
    result = credited(recipe)
    assert result.rewards.tolist() == [20.0, 10.0]  # 30 is cut, 10 is not
    assert result.turn_rewards.tolist() == [0.0, 20.0, 10.0]


def test_other_rewards_change_the_last_turn_of_their_trajectory_only() -> None:
    result = with_rewards(two_trajectories(), torch.tensor([0.0, 5.0]))
    assert result.rewards.tolist() == [0.0, 5.0]
    assert result.turn_rewards.tolist() == [0.0, 0.0, 5.0]


def test_kl_in_the_reward_is_subtracted_before_advantages() -> None:
    kl = Kl(estimator=SpecConfig(kind="k1"), coefficient=0.5, apply_to="reward")
    whole = two_trajectories(sampler_logprobs=[9, -1, 9, -1, 9, -1, -1], ref_logprobs=[9, -2, 9, -2, 9, -1, -1])
    result = credited(replace(CENTRED, kl=kl), whole, AlgorithmState(kl_coefficient=0.5))
    assert result.rewards.tolist() == [2.0, 1.0]  # two tokens, each one nat away, at a half
    assert result.penalties is not None and result.penalties.tolist() == [0.0, 0.5, 0.0, 0.5, 0.0, 0.0, 0.0]
    assert result.advantages is not None and result.advantages.tolist() == [0.0, 0.5, 0.0, 0.5, 0.0, -0.5, -0.5]


def test_an_adaptive_coefficient_changes_once_per_step_and_only_with_a_target() -> None:
    whole = two_trajectories(sampler_logprobs=[0.0] * 7, ref_logprobs=[-1.0] * 7)
    kl = Kl(estimator=SpecConfig(kind="k1"), coefficient=0.5, apply_to="loss", target=0.1, horizon=4)
    _, state, metrics = assign_credit(whole, replace(CENTRED, kl=kl), AlgorithmState(kl_coefficient=0.5))
    assert metrics["kl/reference"] == 1.0 and metrics["kl/coefficient"] == 0.5
    assert state.kl_coefficient == pytest.approx(0.5 * (1 + 0.2 * 2 / 4))
    _, fixed, _ = assign_credit(
        whole, replace(CENTRED, kl=kl.model_copy(update={"target": None})), AlgorithmState(kl_coefficient=0.5)
    )
    assert fixed.kl_coefficient == 0.5


def test_masked_trajectories_count_in_baselines_and_not_in_weights() -> None:
    recipe = replace(CENTRED, masks=(Spec("truncated"),))
    whole = two_trajectories(truncated=[0, 1])
    assert advantages(recipe, whole) == [0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0]
    result = with_loss_weights(credited(recipe, whole), Spec("token_mean")).weights
    assert result is not None and result.tolist() == [0.0, 0.5, 0.0, 0.5, 0.0, 0.0, 0.0]


def test_rejected_tokens_leave_the_denominator_too() -> None:
    recipe = replace(CENTRED, correction=Spec("reject", {"level": "sequence", "low": 0.5, "high": 2.0}))
    whole = two_trajectories(sampler_logprobs=[0.0] * 7, old_logprobs=[0, 0, 0, 0, 0, 1.0, 1.0])
    result = with_loss_weights(credited(recipe, whole), Spec("token_mean")).weights
    assert result is not None and result.tolist() == [0.0, 0.5, 0.0, 0.5, 0.0, 0.0, 0.0]


def test_returns_are_advantages_plus_values_before_whitening() -> None:
    whole = two_trajectories(values=[7.0, 0.5, 7.0, 0.5, 7.0, 0.0, 0.0])
    whole = replace(whole, trained=torch.tensor([0, 1, 0, 0, 0, 1, 1], dtype=torch.bool))
    result = credited(replace(CENTRED, whiten=True), whole)  # 1, -1, -1, which whitening changes
    assert result.returns is not None and result.returns.tolist() == [0.0, 1.5, 0.0, 0.0, 0.0, -1.0, -1.0]


def test_masked_trajectories_count_in_the_statistics_of_whitening() -> None:
    recipe = replace(CENTRED, whiten=True, masks=(Spec("truncated"),))
    result = advantages(recipe, two_trajectories(truncated=[0, 1]))
    assert result == [0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0]  # of 1, 1, -1, -1; without the last two all would be 0


def test_whitened_advantages_have_mean_0_and_deviation_1_and_a_clip_bounds_them() -> None:
    whole = two_trajectories()
    whole = replace(whole, trained=torch.tensor([0, 1, 0, 0, 0, 1, 1], dtype=torch.bool))
    # 1, -1, -1: mean -1/3, deviation sqrt(8)/3
    assert advantages(replace(CENTRED, whiten=True), whole)[1] == pytest.approx(4 / 8**0.5)
    assert advantages(replace(CENTRED, whiten=True, advantage_clip=1.2), whole)[1] == pytest.approx(1.2)


def test_advantage_weights_multiply_whole_trajectories() -> None:
    recipe = replace(CENTRED, advantage_weights=(Spec(f"{__name__}:double_the_first"),))
    assert advantages(recipe) == [0.0, 2.0, 0.0, 2.0, 0.0, -1.0, -1.0]


def test_missing_states_are_an_error() -> None:
    recipe = replace(CENTRED, needs=frozenset({"states"}))
    with pytest.raises(ConfigError, match="needs states"):
        credited(recipe)


def test_running_statistics_cover_unshaped_rewards() -> None:
    recipe = replace(CENTRED, shaping=(Spec("scaled", {"factor": 10.0}),))
    _, state, _ = assign_credit(two_trajectories(), recipe, AlgorithmState())
    assert (state.reward_stats.count, state.reward_stats.mean) == (2, 2.0)


def test_minibatches_split_whole_trajectories_evenly_and_lose_none() -> None:
    whole = batch([0, 1] * 7, (2,) * 7, trajectory=[0, 0, 1, 2, 3, 4, 5], rewards=[0.0] * 6)
    parts = minibatches(whole, 3, seed=1)
    owners = [sorted(set(part.trajectory.tolist())) for part in parts]
    assert [len(each) for each in owners] == [2, 2, 2]
    assert sorted(trajectory for each in owners for trajectory in each) == [0, 1, 2, 3, 4, 5]
    assert sum(len(part.lengths) for part in parts) == 7
    again = [part.ids.tolist() for part in minibatches(whole, 3, seed=1)]
    assert again == [part.ids.tolist() for part in parts]
    assert again != [part.ids.tolist() for part in minibatches(whole, 3, seed=2)]


def careless(batch: Batch) -> torch.Tensor:
    return torch.ones(batch.num_tokens)


def scalar(batch: Batch) -> torch.Tensor:
    return batch.rewards.mean()


def double_the_first(batch: Batch) -> torch.Tensor:
    return torch.tensor([2.0, 1.0])
