"""Results of the oracle, computed by hand."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from roll.algorithms.recipe import Objective
from roll.conformance import oracle, oracle_batches, oracle_losses
from roll.conformance.exact import ExactBatch, ExactTokens
from roll.types import Spec

pytestmark = pytest.mark.slow

LOG2, LOG3 = math.log(2), math.log(3)


def tokens(ratios: list[float], advantages: list[float], **changes: Any) -> ExactTokens:
    """One sequence of trained tokens with these ratios to the old policy, each of probability a half now."""
    logprobs = np.full(len(ratios), -LOG2)
    old = logprobs - np.log(ratios)
    fields: dict[str, Any] = {
        "logprobs": logprobs,
        "frozen_logprobs": logprobs,
        "old_logprobs": old,
        "sampler_logprobs": old,
        "advantages": np.array(advantages),
        "trained": np.ones(len(ratios), np.bool_),
        "row": np.zeros(len(ratios), np.int64),
        "turn": np.zeros(len(ratios), np.int64),
    }
    return ExactTokens(**{**fields, **changes})


def loss(name: str, example: ExactTokens, **arguments: Any) -> list[float]:
    return np.real(oracle.LOSSES[name](example, **arguments)).tolist()


def slope(name: str, example: ExactTokens, **arguments: Any) -> list[float]:
    """The gradient of the sum of losses with respect to logprobs."""
    return oracle.gradient(example, np.ones(len(example.trained)), oracle.plain(name, **arguments)).tolist()


def batch(**changes: Any) -> ExactBatch:
    """Two trajectories of one group: one row of two turns with an observation between and one behind; one plain row.

    tokens   o a a o b o | o c c          (o: observation)
    turns    0 0 0 1 1 2 | 3 3 3          turn 2 is the environment's last word
    """
    fields: dict[str, Any] = {
        "trained": np.array([0, 1, 1, 0, 1, 0, 0, 1, 1], np.bool_),
        "lengths": (6, 3),
        "trajectory": np.array([0, 1]),
        "group": np.array([7, 7]),
        "rewards": np.array([4.0, 2.0]),
        "truncated": np.array([False, True]),
        "turn": np.array([0, 0, 0, 1, 1, 2, 3, 3, 3]),
        "turn_trajectory": np.array([0, 0, 0, 1]),
        "turn_rewards": np.array([1.0, 0.0, 3.0, 2.0]),
        "turn_states": np.array([5, 6, 8, 5]),
        "sampler_logprobs": np.zeros(9),
        "values": np.array([np.nan, 1.0, 2.0, np.nan, 3.0, np.nan, np.nan, 1.0, 0.5]),
    }
    return ExactBatch(**{**fields, **changes})


def on_trained(row: np.ndarray, example: ExactBatch) -> list[float]:
    assert not np.any(row[~example.trained])
    return row[example.trained].tolist()


def test_the_clipped_surrogate_binds_only_where_it_would_gain() -> None:
    example = tokens([2.0, 2.0, 0.5, 0.5, 1.1], [1.0, -1.0, 1.0, -1.0, 2.0])
    assert loss("clipped", example) == pytest.approx([-1.2, 2.0, -0.5, 0.8, -2.2])
    assert slope("clipped", example) == pytest.approx([0.0, 2.0, -0.5, 0.0, -2.2])


def test_dual_clip_bounds_the_loss_of_bad_tokens_alone() -> None:
    example = tokens([5.0, 5.0, 2.0], [-1.0, 1.0, -1.0])
    assert loss("clipped", example, dual_clip=3.0) == pytest.approx([3.0, -1.2, 2.0])
    assert slope("clipped", example, dual_clip=3.0) == pytest.approx([0.0, 0.0, 2.0])


def test_weights_of_detached_ratios_leave_the_gradient_of_the_logprob() -> None:
    example = tokens([4.0, 0.5], [1.0, -2.0])
    assert loss("policy_gradient", example) == pytest.approx([LOG2, -2 * LOG2])
    assert slope("cispo", example) == pytest.approx([-1.2, 1.0])
    assert slope("truncated_importance", example, cap=3.0) == pytest.approx([-3.0, 1.0])
    assert slope("cispo", example, clip_low=0.2, clip_high=9.0) == pytest.approx([-4.0, 1.6])


def test_topr_tapers_negatives_by_the_ratio_to_the_sampler() -> None:
    example = tokens([1.0, 1.0, 1.0], [1.0, -1.0, -1.0])
    example = replace(example, sampler_logprobs=example.logprobs - np.log([9.0, 0.25, 9.0]))
    assert slope("topr", example, positive=2.0) == pytest.approx([-2.0, 0.25, 1.0])


def test_raft_learns_from_positives_alone() -> None:
    example = tokens([1.1, 1.1, 2.0], [1.0, -1.0, 1.0])
    assert loss("raft", example) == pytest.approx([-1.1, 0.0, -1.2])


def test_kimi_adds_a_penalty_of_the_squared_log_ratio() -> None:
    example = tokens([2.0], [3.0])
    assert loss("kimi", example, tau=0.5) == pytest.approx([3 * LOG2 + 0.25 * LOG2**2])
    assert slope("kimi", example, tau=0.5) == pytest.approx([-3 + 0.5 * LOG2])


def test_sapo_is_a_gate_whose_slope_at_ratio_one_is_the_advantage() -> None:
    example = tokens([1.0, 1.0], [3.0, -2.0])
    assert loss("sapo", example, tau_positive=2.0, tau_negative=4.0) == pytest.approx([-3.0, 1.0])  # 4/tau * 1/2 * A
    assert slope("sapo", example, tau_positive=2.0, tau_negative=4.0) == pytest.approx([-3.0, 2.0])


def test_the_ratio_of_a_sequence_is_the_geometric_mean_over_its_trained_tokens() -> None:
    example = tokens([8.0, 1.0, 1.0, 5.0], [1.0, 1.0, -1.0, 1.0], trained=np.array([True, True, True, False]))
    wide = {"clip_low": 9.0, "clip_high": 9.0}
    assert loss("sequence_clipped", example, **wide) == pytest.approx([-2.0, -2.0, 2.0, 0.0])  # cube root of 8
    assert slope("sequence_clipped", example, **wide) == pytest.approx([-2 / 3, -2 / 3, -2 / 3, 0.0])  # -1 * s / 3 each
    assert loss("sequence_clipped", example) == pytest.approx([-1.0004, -1.0004, 2.0, 0.0])
    # log-ratios log 8, 0, 0: the first is bounded by log 2 for its positive advantage
    assert loss("geometric_clipped", example, clip_high=LOG2) == pytest.approx(
        [-(2 ** (1 / 3))] * 2 + [2 ** (1 / 3), 0.0]
    )


def test_decoupled_weighs_by_the_behaviour_ratio() -> None:
    example = tokens([1.1, 1.1], [1.0, 1.0])
    example = replace(example, sampler_logprobs=example.old_logprobs - np.log([3.0, 0.5]))
    assert loss("decoupled", example) == pytest.approx([-3.3, -0.55])
    assert loss("decoupled", example, cap=2.0) == pytest.approx([-2.2, -0.55])


def test_the_value_loss_takes_the_larger_of_free_and_clipped() -> None:
    example = tokens([1.0, 1.0, 1.0], [0.0] * 3)
    example = replace(
        example, values=np.array([2.0, 2.0, 0.1]), old_values=np.zeros(3), returns=np.array([3.0, 1.0, 1.0])
    )
    assert loss("squared_value", example) == pytest.approx([0.5, 0.5, 0.405])
    assert loss("squared_value", example, clip=0.5) == pytest.approx([3.125, 0.5, 0.405])  # (0.5 - 3)^2 / 2
    by_value = oracle.gradient(example, np.ones(3), oracle.plain("squared_value", clip=0.5), "values")
    assert by_value.tolist() == pytest.approx([0.0, 1.0, -0.9])


def test_corrections_at_every_level() -> None:
    example = tokens([1.0] * 4, [1.0] * 4, row=np.array([0, 0, 0, 1]), turn=np.array([0, 0, 1, 2]))
    example = replace(example, sampler_logprobs=example.old_logprobs - np.log([2.0, 4.0, 0.5, 3.0]))
    levels = {"token": [2, 4, 0.5, 3], "turn": [8, 8, 0.5, 3], "sequence": [4, 4, 4, 3]}
    levels["geometric"] = [4 ** (1 / 3)] * 3 + [3]
    for level, expected in levels.items():
        assert oracle_losses.truncate(example, level=level, cap=100).tolist() == pytest.approx(expected)
    assert oracle_losses.truncate(example, cap=2.5).tolist() == pytest.approx([2, 2.5, 0.5, 2.5])
    assert oracle_losses.mask(example, low=1.0, high=3.5).tolist() == pytest.approx([2, 0, 0, 3])
    assert oracle_losses.reject(example, low=1.0, high=3.5).tolist() == [0, 0, 0, 1]


def test_estimators_of_kl() -> None:
    assert oracle_losses.k1(LOG3) == LOG3
    assert oracle_losses.k2(3.0) == 4.5
    assert oracle_losses.k3(LOG3).real == pytest.approx(1 / 3 + LOG3 - 1)


def test_an_objective_is_corrected_loss_plus_kl_minus_entropy() -> None:
    example = tokens([1.0, 1.0], [1.0, 1.0], entropies=np.array([1.0, 2.0]))
    example = replace(
        example, sampler_logprobs=example.old_logprobs - np.log([3.0, 1.0]), ref_logprobs=example.logprobs - LOG3
    )
    objective = Objective(
        loss=Spec("clipped"), correction=Spec("truncate"), kl=Spec("k1"), kl_coefficient=0.5, entropy=0.1
    )
    weights = np.array([0.5, 0.25])
    expected = 0.5 * (-1 * 2 + 0.5 * LOG3 - 0.1) + 0.25 * (-1 + 0.5 * LOG3 - 0.2)
    assert oracle.value(example, weights, objective) == pytest.approx(expected)
    assert oracle.gradient(example, weights, objective).tolist() == pytest.approx([0.5 * -1.5, 0.25 * -0.5])
    assert oracle.gradient(example, weights, objective, "entropies").tolist() == pytest.approx([-0.05, -0.025])


def test_group_advantages() -> None:
    example = batch()
    assert on_trained(oracle_batches.group_normalised(example, eps=1.0), example) == pytest.approx(
        [0.5] * 3 + [-0.5] * 2
    )
    unbiased = oracle_batches.group_normalised(example, eps=0.0, unbiased=True)
    assert on_trained(unbiased, example) == pytest.approx([2**-0.5] * 3 + [-(2**-0.5)] * 2)
    assert on_trained(oracle_batches.group_normalised(example, scale=False), example) == [1.0] * 3 + [-1.0] * 2
    assert on_trained(oracle_batches.leave_one_out(example), example) == [2.0] * 3 + [-2.0] * 2
    alone = batch(group=np.array([1, 2]))
    for function in (oracle_batches.group_normalised, oracle_batches.leave_one_out):
        assert on_trained(function(alone), alone) == [0.0] * 5
    assert on_trained(oracle_batches.batch_centred(alone), alone) == [1.0] * 3 + [-1.0] * 2


def test_the_batch_gives_the_deviation_where_the_group_gives_the_mean() -> None:
    example = batch(rewards=np.array([4.0, 2.0, 6.0]), group=np.array([7, 7, 1]), truncated=np.zeros(3, np.bool_))
    result = oracle_batches.group_centred_batch_scaled(example, eps=0.0)
    assert on_trained(result, example) == pytest.approx([(3 / 8) ** 0.5] * 3 + [-((3 / 8) ** 0.5)] * 2)  # variance 8/3


def test_rewards_land_on_the_last_trained_token_although_an_observation_follows() -> None:
    example = batch(penalties=np.array([np.nan, 0.5, 0, np.nan, 0, np.nan, np.nan, 0, 0.25]))
    assert oracle_batches.token_rewards(example).tolist() == [0, -0.5, 1, 0, 3, 0, 0, 0, 1.75]
    before = batch(
        turn=np.array([1, 1, 1, 1, 2, 2, 3, 3, 3])
    )  # turn 0 says nothing: its reward goes to the first token
    assert oracle_batches.token_rewards(before).tolist() == [0, 1, 0, 0, 3, 0, 0, 0, 2]


def test_gae_ends_at_the_last_trained_token_and_bootstraps_only_with_the_option() -> None:
    example = batch()
    # values 1 2 3 and rewards 1 at the second, 3 at the third
    assert on_trained(oracle_batches.gae(example), example) == [3.0, 2.0, 0.0, 1.0, 1.5]
    half = oracle_batches.gae(example, gamma=0.5, lam=0.5)
    assert on_trained(half, example) == pytest.approx([0.125, 0.5, 0.0, -0.375, 1.5])
    contexts = oracle_batches.gae(example, gamma=0.5, lam=0.0, bootstrap=True)
    assert on_trained(contexts, example) == pytest.approx([0.0, 0.5, 0.0, -0.75, 1.75])  # only the second was truncated


def test_discounts_are_per_turn_or_per_token() -> None:
    example = batch()
    by_turn = oracle_batches.discounted(example, gamma=0.5)
    assert on_trained(by_turn, example) == [1.75, 1.75, 1.5, 2.0, 2.0]  # 1 + 0.25 * 3, 0.5 * 3
    by_token = oracle_batches.discounted(example, gamma=0.5, per="token", baseline="group")
    assert on_trained(by_token, example) == pytest.approx([1.25 - 3, 2.5 - 3, 3 - 3, 1 - 3, 2 - 3])


def test_whitening_is_over_trained_tokens() -> None:
    example = batch(turn_rewards=np.array([0.0, 0.0, 4.0, 2.0]))
    result = on_trained(oracle_batches.batch_normalised(example, eps=0.0), example)
    assert result == pytest.approx([0.8 / 0.96**0.5] * 3 + [-1.2 / 0.96**0.5] * 2)  # mean 3.2, variance 0.96
    centred = oracle_batches.batch_normalised(example, baseline="group", eps=0.0)
    assert on_trained(centred, example) == pytest.approx(result)  # one group: the same number off everywhere


def test_gigpo_compares_turns_in_the_same_state_of_the_same_group() -> None:
    example = batch()
    # turns 0 and 3 share state 5 and have returns 1 + 0.25 * 3 and 2; the others are alone
    result = on_trained(oracle_batches.gigpo(example, gamma=0.5, eps=0.0, step_weight=2.0), example)
    assert result == pytest.approx([1 - 2, 1 - 2, 1 + 0, -1 + 2, -1 + 2])
    apart = batch(group=np.array([1, 2]))
    assert on_trained(oracle_batches.gigpo(apart), apart) == [0.0] * 5


def test_distillation_is_the_teachers_logprob_minus_the_policys() -> None:
    teacher = np.arange(9.0)
    example = batch(teacher_logprobs=teacher)
    assert on_trained(oracle_batches.distilled(example, weight=2.0), example) == [2.0, 4.0, 8.0, 14.0, 16.0]
    newer = batch(teacher_logprobs=teacher, old_logprobs=np.ones(9))
    assert on_trained(oracle_batches.distilled(newer), newer) == [0.0, 1.0, 3.0, 6.0, 7.0]


def test_aggregations_weigh_trained_tokens_of_rows_that_have_any() -> None:
    example = batch(lengths=(6, 3, 0), trajectory=np.array([0, 1, 1]))
    assert on_trained(oracle_batches.token_mean(example), example) == [0.2] * 5
    by_row = [1 / 6] * 3 + [1 / 4] * 2
    assert on_trained(oracle_batches.sequence_mean_token_mean(example), example) == pytest.approx(by_row)
    assert on_trained(oracle_batches.sequence_mean_token_sum(example), example) == [0.5] * 5
    assert on_trained(oracle_batches.constant(example, tokens=10), example) == pytest.approx([0.05] * 5)


def test_shapings() -> None:
    example = batch(parts={"format": np.array([np.nan, 0.0])})
    past = np.array([0.0, 6.0, 4.0, 2.0])
    assert oracle_batches.clipped(example, past, low=3.0, high=3.5).tolist() == [3.5, 3.0]
    assert oracle_batches.scaled(example, past, factor=2.0, shift=1.0).tolist() == [9.0, 5.0]
    assert oracle_batches.format(example, past).tolist() == [4.0, 1.0]
    # 3 and 2 trained tokens; nothing up to 2, all of it at 4
    assert oracle_batches.overlong(example, past, max_tokens=4, buffer=2).tolist() == [3.5, 2.0]
    running = oracle_batches.normalised(example, past, mean="running", std="running", eps=0.0)
    assert running.tolist() == pytest.approx([1 / 5**0.5, -1 / 5**0.5])  # mean 3, variance (9 + 9 + 1 + 1) / 4
    mixed = oracle_batches.normalised(example, past, mean="none", std="group", eps=1.0)
    assert mixed.tolist() == [2.0, 1.0]
    alone = batch(group=np.array([1, 2]))
    assert oracle_batches.normalised(alone, past, mean="none", std="group").tolist() == [0.0, 0.0]
    assert oracle_batches.normalised(alone, past, mean="none", std="none").tolist() == [4.0, 2.0]
