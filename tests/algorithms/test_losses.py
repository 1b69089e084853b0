"""Per-token losses and their gradients, computed by hand."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from roll.algorithms import losses
from roll.algorithms.objective import weighted_sum
from roll.errors import ConfigError
from roll.registry import LOSSES
from roll.types import Tokens
from tests.algorithms.build import tokens

NAMES = sorted(LOSSES.targets)
OF_POLICIES = [name for name in NAMES if name != "squared_value"]
OPTIONS: dict[str, list[dict[str, Any]]] = {"clipped": [{}, {"dual_clip": 3.0}], "squared_value": [{}, {"clip": 0.2}]}


def of_ratios(ratios: Sequence[float], advantages: Sequence[float], **example: Any) -> Tokens:
    """Tokens with logprob -1 now and a probability `ratio` times smaller before the update."""
    old = [-1 - math.log(ratio) for ratio in ratios]
    return tokens([-1.0] * len(ratios), **{"old_logprobs": old, "advantages": advantages, **example})


def gradient(row: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(row.sum(), of)[0]


def check(result: torch.Tensor, expected: Sequence[float]) -> None:
    torch.testing.assert_close(result.detach(), torch.tensor(expected), rtol=1e-5, atol=1e-6)


def filled() -> Tokens:
    """Two sequences with everything a loss may read; the second and the last token are not trained on."""
    return tokens(
        [-0.5, -1.0, -2.0, -0.7, -0.1, -1.5],
        old_logprobs=[-0.6, -1.0, -1.7, -0.6, -0.5, -1.0],
        sampler_logprobs=[-0.7, -1.0, -1.8, -0.9, -0.4, -1.0],
        advantages=[1.0, 0.0, 1.0, -2.0, -2.0, 0.0],
        trained=[1, 0, 1, 1, 1, 0],
        row=[0, 0, 0, 1, 1, 1],
        values=[1.0, 0.0, 2.0, 3.0, 4.0, 0.0],
        old_values=[1.5, 0.0, 2.1, 2.5, 4.5, 0.0],
        returns=[0.0, 0.0, 1.0, 4.0, 6.0, 0.0],
    )


def test_the_clip_bounds_gains_and_leaves_losses_alone():
    example = of_ratios([1.0, 2.0, 2.0, 0.5, 0.5], [1.0, 1.0, -1.0, 1.0, -1.0])
    check(losses.clipped(example, clip_low=0.2, clip_high=0.3)[0], [-1.0, -1.3, 2.0, -0.5, 0.8])


@pytest.mark.parametrize("log_ratio", [60.0, 89.0, 1000.0])
@pytest.mark.parametrize("name", OF_POLICIES)
def test_a_ratio_beyond_single_precision_gives_a_finite_loss_and_gradient(name: str, log_ratio: float):
    old = [-1 - log_ratio] * 3
    example = tokens(
        [-1.0] * 3,
        old_logprobs=old,
        sampler_logprobs=[each - log_ratio for each in old],
        advantages=[2.0, -2.0, 0.0],
        row=[0, 1, 2],
    )
    for options in OPTIONS.get(name, [{}]):
        row, _ = LOSSES[name](example, **options)
        slopes = gradient(row, example.logprobs)
        assert row.isfinite().all() and slopes.isfinite().all() and slopes.norm().isfinite()


def test_a_large_ratio_is_exact_up_to_the_bound_and_has_no_gradient_past_it():
    example = tokens([0.0, 0.0], old_logprobs=[-40.0, -40.5], advantages=[-1.0, -1.0])
    row, _ = losses.clipped(example)
    largest = torch.tensor(40.0).exp()
    assert row.tolist() == [largest, largest]
    assert gradient(row, example.logprobs).tolist() == [largest, 0.0]


def test_a_clipped_token_has_no_gradient_and_is_counted():
    example = of_ratios([1.0, 2.0, 2.0, 0.5, 0.5], [1.0, 1.0, -1.0, 1.0, -1.0])
    row, metrics = losses.clipped(example)
    check(gradient(row, example.logprobs), [-1.0, 0.0, 2.0, -0.5, 0.0])
    assert metrics["clip_fraction"].tolist() == [0.0, 1.0, 0.0, 0.0, 1.0]
    check(metrics["ratio"], [1.0, 2.0, 2.0, 0.5, 0.5])


def test_dual_clip_bounds_what_a_bad_token_can_cost_and_nothing_else():
    example = of_ratios([4.0, 2.0, 0.5, 4.0], [-1.0, -1.0, -1.0, 1.0])
    row, metrics = losses.clipped(example, dual_clip=3.0)
    check(row, [3.0, 2.0, 0.8, -1.2])  # without it 4, 2, 0.8, -1.2
    check(gradient(row, example.logprobs), [0.0, 2.0, 0.0, 0.0])
    assert metrics["clip_fraction"].tolist() == [1.0, 0.0, 1.0, 1.0]


def test_a_dual_clip_that_would_cut_at_ratio_one_is_refused():
    with pytest.raises(ConfigError, match=r"dual_clip must be above 1 \(got 1.0\)"):
        losses.clipped(filled(), dual_clip=1.0)


def test_policy_gradient_is_minus_advantage_times_logprob():
    example = tokens([-1.0, -0.5], advantages=[2.0, -3.0])
    row, metrics = losses.policy_gradient(example)
    check(row, [2.0, -1.5])
    check(gradient(row, example.logprobs), [-2.0, 3.0])
    assert metrics == {}


def test_a_sequence_ratio_is_the_geometric_mean_over_its_trained_tokens():
    # row 0: (0.3 + 0.1) / 2, free; row 2: -0.5, below; row 3: 0.5, above; rows 1 and 4: nothing trained, no token
    example = tokens(
        [0.3, 9.0, 0.1, 7.0, -0.5, 0.5, 0.0],
        advantages=[1.0, 0.0, 1.0, 0.0, -1.0, 1.0, 1.0],
        trained=[1, 0, 1, 0, 1, 1, 1],
        row=[0, 0, 0, 1, 2, 3, 5],
    )
    row, metrics = losses.sequence_clipped(example, clip_low=0.2, clip_high=0.3)
    ratio = math.exp(0.2)
    check(row, [-ratio, 0.0, -ratio, 0.0, 0.8, -1.3, -1.0])
    check(gradient(row, example.logprobs), [-ratio, 0.0, -ratio, 0.0, 0.0, 0.0, -1.0])
    assert metrics["clip_fraction"].tolist() == [0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0]
    check(metrics["ratio"], [ratio, 1.0, ratio, 1.0, math.exp(-0.5), math.exp(0.5), 1.0])


def test_the_sequence_clip_is_narrow_by_default():
    example = tokens([5e-4, -5e-4], advantages=[1.0, -1.0], row=[0, 1])
    row, _ = losses.sequence_clipped(example)
    torch.testing.assert_close(row.detach(), torch.tensor([-1.0004, 0.9997]), rtol=0, atol=1e-7)


def test_tokens_of_a_sequence_keep_their_own_advantages():
    example = tokens([0.1, 0.3], advantages=[1.0, -2.0])
    row, _ = losses.sequence_clipped(example, clip_low=0.5, clip_high=0.5)
    check(row, [-math.exp(0.2), 2 * math.exp(0.2)])
    check(gradient(row, example.logprobs), [math.exp(0.2) / 2] * 2)  # (-1 + 2) s, half of it through each token


def test_token_ratios_are_clipped_one_sidedly_before_their_geometric_mean():
    # min(0.6, 0.4) and 0.2: mean 0.3; max(-0.6, -0.4) and 0.8: mean 0.2; 0.9 as it is and 0.1: mean 0.5; -0.9 and 0.1
    example = tokens(
        [0.6, 0.2, -0.6, 0.8, 0.9, 0.1, -0.9, 0.1],
        advantages=[1.0, 1.0, -2.0, -2.0, 0.0, 1.0, 1.0, 1.0],
        row=[0, 0, 1, 1, 2, 2, 3, 3],
    )
    row, metrics = losses.geometric_clipped(example)
    up, down, mixed, low = math.exp(0.3), math.exp(0.2), math.exp(0.5), math.exp(-0.4)
    check(row, [-up, -up, 2 * down, 2 * down, 0.0, -mixed, -low, -low])
    check(gradient(row, example.logprobs), [0.0, -up, 0.0, 2 * down, -mixed / 2, -mixed / 2, -low, -low])
    assert metrics["clip_fraction"].tolist() == [1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    check(metrics["ratio"], [up, up, down, down, mixed, mixed, low, low])


@pytest.mark.parametrize("name", ["sequence_clipped", "geometric_clipped"])
def test_a_sequence_ratio_is_right_however_long_the_sequence(name: str):
    num = 100_000
    example = tokens([0.1] * num, advantages=[1.0] * num)  # one by one in single precision they sum to 9998.6
    row, _ = LOSSES[name](example, clip_high=0.5)
    torch.testing.assert_close(row[0].detach(), torch.tensor(-math.exp(0.1)), rtol=1e-6, atol=0)
    torch.testing.assert_close(gradient(row, example.logprobs), row.detach(), rtol=1e-6, atol=0)


def test_cispo_weighs_by_the_clipped_ratio_and_removes_no_gradient():
    example = of_ratios([0.5, 1.0, 2.0], [1.0, 2.0, -1.0])
    row, metrics = losses.cispo(example, clip_low=0.2, clip_high=0.3)
    check(row, [0.8, 2.0, -1.3])  # minus weight times advantage times logprob -1
    check(gradient(row, example.logprobs), [-0.8, -2.0, 1.3])
    assert metrics["clip_fraction"].tolist() == [1.0, 0.0, 1.0]


def test_cispo_has_no_lower_bound_by_default():
    check(losses.cispo(of_ratios([0.01, 2.0], [1.0, 1.0]))[0], [0.01, 1.2])


def test_truncated_importance_caps_the_ratio_from_above_only():
    example = of_ratios([0.01, 3.0], [1.0, -2.0])
    row, metrics = losses.truncated_importance(example)
    check(row, [0.01, -4.0])
    check(gradient(row, example.logprobs), [-0.01, 4.0])
    assert metrics["clip_fraction"].tolist() == [0.0, 1.0]


def test_topr_tapers_bad_tokens_by_their_ratio_to_the_sampler():
    # ratios to the sampler 3, 3, 0.5, 3; those to the policy before the update must not matter
    sampler = [-1 - math.log(ratio) for ratio in (3.0, 3.0, 0.5, 3.0)]
    example = tokens([-1.0] * 4, old_logprobs=[5.0] * 4, sampler_logprobs=sampler, advantages=[2.0, -2.0, -2.0, 0.0])
    row, metrics = losses.topr(example, positive=0.5, negative=2.0)
    check(row, [1.0, -4.0, -2.0, 0.0])
    check(gradient(row, example.logprobs), [-1.0, 4.0, 2.0, 0.0])
    assert metrics["clip_fraction"].tolist() == [0.0, 1.0, 0.0, 0.0]
    check(losses.topr(example, low=0.8, high=2.0)[0], [2.0, -4.0, -1.6, 0.0])


def test_raft_learns_only_from_tokens_with_a_positive_advantage():
    example = of_ratios([2.0, 1.1, 2.0, 0.5], [1.0, 1.0, -1.0, 0.0])
    row, metrics = losses.raft(example)
    check(row, [-1.2, -1.1, 0.0, 0.0])
    check(gradient(row, example.logprobs), [0.0, -1.1, 0.0, 0.0])
    assert metrics["clip_fraction"].tolist() == [1.0, 0.0, 0.0, 0.0]


def test_kimi_adds_a_penalty_of_the_squared_log_ratio():
    example = tokens([-1.0], old_logprobs=[-1.5], advantages=[2.0])
    row, _ = losses.kimi(example, tau=0.4)
    check(row, [2.05])  # 2 * 1 + 0.2 * 0.5^2
    check(gradient(row, example.logprobs), [-1.8])  # -2 + 0.4 * 0.5


def test_sapo_fades_the_gradient_as_the_ratio_leaves_one():
    # at ratio 2 and tau 2: 4/2 sigmoid(2); at 0.5 and tau 4: 4/4 sigmoid(-2); slopes 4 sigmoid(2) sigmoid(-2)
    example = of_ratios([1.0, 2.0, 0.5], [1.0, 1.0, -3.0])
    row, _ = losses.sapo(example, tau_positive=2.0, tau_negative=4.0)
    high, low = 1 / (1 + math.exp(-2)), 1 / (1 + math.exp(2))
    check(row, [-1.0, -2 * high, 3 * low])
    check(gradient(row, example.logprobs), [-1.0, -2.0 * 4 * high * low, 3 * 0.5 * 4 * high * low])


def test_decoupled_weighs_the_surrogate_by_the_behaviour_ratio():
    # before the update 3, 0.5 and 1 times as likely as when sampled
    old = [-1.0, -1 - math.log(2), -1.0]
    sampler = [old[0] - math.log(3), old[1] - math.log(0.5), old[2]]
    example = tokens([-1.0] * 3, old_logprobs=old, sampler_logprobs=sampler, advantages=[1.0, 1.0, -1.0])
    row, metrics = losses.decoupled(example)
    check(row, [-3.0, -0.6, 1.0])
    check(gradient(row, example.logprobs), [-3.0, 0.0, 1.0])
    check(metrics["behaviour_ratio"], [3.0, 0.5, 1.0])
    assert metrics["clip_fraction"].tolist() == [0.0, 1.0, 0.0]
    check(losses.decoupled(example, cap=2.0)[0], [-2.0, -0.6, 1.0])


def test_the_critic_loss_is_the_squared_distance_to_the_returns():
    example = tokens([0.0, 0.0], values=[1.0, 3.0], returns=[2.0, 0.0])
    row, metrics = losses.squared_value(example)
    check(row, [0.5, 4.5])
    assert example.values is not None
    check(gradient(row, example.values), [-1.0, 3.0])
    assert {name: value.tolist() for name, value in metrics.items()} == {"value_error": [1.0, 3.0]}


def test_the_value_clip_takes_the_larger_loss():
    # held to 0.5: (0.5 - 2)^2 / 2 is larger; held to 2.5: 2.5^2 / 2 is smaller; 1.2 is inside
    example = tokens([0.0] * 3, values=[1.0, 3.0, 1.2], old_values=[0.0, 2.0, 1.1], returns=[2.0, 0.0, 2.0])
    row, metrics = losses.squared_value(example, clip=0.5)
    check(row, [1.125, 4.5, 0.32])
    assert example.values is not None
    check(gradient(row, example.values), [0.0, 3.0, -0.8])
    assert metrics["clip_fraction"].tolist() == [1.0, 0.0, 0.0]


def test_rounding_is_not_counted_as_a_value_clip():
    values = torch.linspace(-0.1, 0.1, 100).tolist()
    example = tokens([0.0] * 100, values=values, old_values=[0.3] * 100, returns=[0.0] * 100)
    assert losses.squared_value(example, clip=0.5)[1]["clip_fraction"].tolist() == [0.0] * 100


@pytest.mark.parametrize("name", OF_POLICIES)
def test_before_the_first_update_every_gradient_is_the_policy_gradient(name: str):
    advantages = [2.0, 3.0] if name == "raft" else [2.0, -3.0]
    logprobs = [-1.0, -0.5]
    example = tokens(logprobs, old_logprobs=logprobs, sampler_logprobs=logprobs, advantages=advantages, row=[0, 1])
    check(gradient(LOSSES[name](example)[0], example.logprobs), [-advantage for advantage in advantages])


@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf, 1e30])
@pytest.mark.parametrize("name", NAMES)
def test_values_at_untrained_tokens_reach_neither_loss_nor_gradient(name: str, garbage: float):
    for options in OPTIONS.get(name, [{}]):
        clean, dirty = filled(), spoiled(filled(), garbage)
        assert outcome(name, options, dirty) == outcome(name, options, clean)


@pytest.mark.parametrize("name", NAMES)
def test_a_loss_does_not_depend_on_what_shares_its_micro_batch(name: str):
    whole, weights = filled(), torch.tensor([0.1, 0.0, 0.2, 0.3, 0.4, 0.0])
    together = weighted_sum(LOSSES[name](whole)[0], weights)
    apart = [weighted_sum(LOSSES[name](cut(whole, keep))[0], weights[keep]) for keep in (slice(0, 3), slice(3, 6))]
    torch.testing.assert_close(sum(apart), together)


@pytest.mark.parametrize("name", NAMES)
def test_a_metric_is_a_row_outside_the_gradient(name: str):
    for options in OPTIONS.get(name, [{}]):
        row, metrics = LOSSES[name](filled(), **options)
        assert row.shape == (6,) and row.dtype == torch.float32 and row.requires_grad
        assert all(metric.shape == (6,) and metric.dtype == torch.float32 for metric in metrics.values())
        assert not any(metric.requires_grad for metric in metrics.values())


@pytest.mark.parametrize("name", NAMES)
def test_no_tokens_have_no_loss(name: str):
    for options in OPTIONS.get(name, [{}]):
        row, _ = LOSSES[name](cut(filled(), slice(0, 0)), **options)
        assert row.shape == (0,)


ROWS = ("logprobs", "old_logprobs", "sampler_logprobs", "advantages", "values", "old_values", "returns")


def spoiled(example: Tokens, garbage: float) -> Tokens:
    """The tokens with every value at untrained positions replaced."""
    rows = {name: torch.where(example.trained, getattr(example, name).detach(), garbage) for name in ROWS}
    return replace(
        example, **{**rows, "logprobs": rows["logprobs"].requires_grad_(), "values": rows["values"].requires_grad_()}
    )


def outcome(name: str, options: dict[str, Any], example: Tokens) -> tuple[float, list[float]]:
    """Loss and gradient as the engine computes them."""
    row, _ = LOSSES[name](example, **options)
    leaf = example.values if name == "squared_value" else example.logprobs
    assert leaf is not None
    total = weighted_sum(row, example.trained / 4)
    return total.item(), torch.autograd.grad(total, leaf)[0].tolist()


def cut(example: Tokens, keep: slice) -> Tokens:
    rows = {name: getattr(example, name)[keep] for name in (*ROWS, "trained", "turn", "trajectory", "row")}
    first = rows["row"].min() if len(rows["row"]) else 0
    return replace(example, **{**rows, "row": rows["row"] - first})
