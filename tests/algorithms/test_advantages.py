"""Advantages, computed by hand; untrained tokens hold NaN wherever they could leak."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from roll.algorithms.advantages import (
    batch_centred,
    batch_normalised,
    discounted,
    distilled,
    gae,
    gigpo,
    group_centred_batch_scaled,
    group_normalised,
    group_normalised_process,
    leave_one_out,
)
from roll.errors import ConfigError, UnknownName
from roll.types import Batch
from tests.algorithms.build import batch

NAN = math.nan


def attempts(rewards: Sequence[float], group: Sequence[int]) -> Batch:
    """One row per attempt, with one prompt token and one response token: the odd tokens have advantages."""
    return batch([0, 1] * len(rewards), (2,) * len(rewards), rewards=rewards, group=group)


def each(advantages: torch.Tensor) -> torch.Tensor:
    assert advantages[::2].tolist() == [0.0] * (len(advantages) // 2)
    return advantages[1::2]


def two_attempts(**example: Any) -> Batch:
    # attempt 0: row "o s s o s o" (turns 0 and 1) and row "o s" (turn 2); attempt 1: row "o s s" (turn 3)
    return batch(
        [0, 1, 1, 0, 1, 0, 0, 1, 0, 1, 1],
        (6, 2, 3),
        trajectory=[0, 0, 1],
        turn=[0, 0, 0, 1, 1, 1, 2, 2, 3, 3, 3],
        **example,
    )


def close(result: torch.Tensor, expected: Sequence[float]) -> None:
    torch.testing.assert_close(result, torch.tensor(expected, dtype=torch.float32))


# One number a trajectory


def test_rewards_are_measured_in_deviations_from_the_siblings_mean():
    # group 7: mean 2, squares 1 + 1, biased deviation 1; group 3: mean 1, squares 1 + 1 + 4, biased deviation sqrt(2)
    example = attempts([1.0, 3.0, 0.0, 0.0, 3.0], [7, 7, 3, 3, 3])
    close(each(group_normalised(example, eps=0.0)), [-1.0, 1.0, -(0.5**0.5), -(0.5**0.5), 2.0**0.5])


def test_the_unbiased_deviation_divides_by_one_less():
    example = attempts([1.0, 3.0], [0, 0])
    close(each(group_normalised(example, unbiased=True, eps=0.0)), [-(0.5**0.5), 0.5**0.5])  # deviation sqrt(2 / 1)


def test_without_scale_only_the_mean_is_subtracted():
    result = group_normalised(attempts([1.0, 3.0, 8.0], [0, 0, 1]), scale=False)
    assert each(result).tolist() == [-1.0, 1.0, 0.0]


def test_eps_is_added_to_the_deviation():
    assert each(group_normalised(attempts([0.0, 2.0], [0, 0]), eps=1.0)).tolist() == [-0.5, 0.5]  # 1 / (1 + 1)


def test_an_advantage_lies_on_every_trained_token_of_its_trajectory_and_counts_it_once():
    result = group_normalised(two_attempts(rewards=[3.0, 1.0]), scale=False)
    assert result.tolist() == [0, 1, 1, 0, 1, 0, 0, 1, 0, -1, -1]


def test_a_reward_is_compared_with_the_mean_of_the_others():
    # group 2: 3 - (0 + 6) / 2, 0 - (3 + 6) / 2, 6 - (3 + 0) / 2; group 1 has nobody else
    result = leave_one_out(attempts([3.0, 8.0, 0.0, 6.0], [2, 1, 2, 2]))
    assert each(result).tolist() == [0.0, 0.0, -4.5, 4.5]


def test_batch_centred_subtracts_the_mean_of_all_trajectories():
    assert each(batch_centred(attempts([0.0, 1.0, 5.0], [0, 0, 1]))).tolist() == [-2.0, -1.0, 3.0]


def test_the_mean_may_be_the_groups_and_the_deviation_the_batchs():
    # group means 1 and 5; mean of all 3, squares 9 + 1 + 1 + 9, biased deviation sqrt(5)
    example = attempts([0.0, 4.0, 2.0, 6.0], [0, 1, 0, 1])
    close(each(group_centred_batch_scaled(example, eps=0.0)), [-(0.2**0.5), -(0.2**0.5), 0.2**0.5, 0.2**0.5])
    unbiased = each(group_centred_batch_scaled(example, unbiased=True, eps=0.0))
    close(unbiased, [-(0.15**0.5), -(0.15**0.5), 0.15**0.5, 0.15**0.5])  # deviation sqrt(20 / 3)


@pytest.mark.parametrize("advantage", [group_normalised, leave_one_out, group_centred_batch_scaled, batch_normalised])
def test_equal_rewards_earn_exactly_nothing(advantage: Callable[[Batch], torch.Tensor]):
    for num in (3, 7, 10):  # sums of 0.1 that do not divide back to 0.1 in single precision
        result = advantage(attempts([0.1] * num, [0] * num))
        assert result.tolist() == [0.0] * (2 * num)


def test_a_group_of_one_gets_exactly_zero_and_never_nan():
    example = attempts([5.0, -2.0], [0, 1])
    for unbiased in (False, True):
        assert each(group_normalised(example, unbiased=unbiased, eps=0.0)).tolist() == [0.0, 0.0]
    assert each(leave_one_out(example)).tolist() == [0.0, 0.0]
    assert each(group_centred_batch_scaled(example)).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    "advantage",
    [
        group_normalised,
        leave_one_out,
        group_centred_batch_scaled,
        lambda example: batch_normalised(example, baseline="group"),
        lambda example: discounted(example, baseline="group"),
        lambda example: gigpo(replace(example, turn_states=torch.zeros_like(example.turn_trajectory))),
    ],
)
def test_siblings_are_matched_by_group_id_not_by_position(advantage: Callable[[Batch], torch.Tensor]):
    rewards, group, order = [1.0, 0.0, 3.0, 0.0, 4.0], [7, 3, 7, 3, 3], [4, 2, 0, 3, 1]
    straight = each(advantage(attempts(rewards, group)))
    mixed = each(advantage(attempts([rewards[i] for i in order], [group[i] for i in order])))
    torch.testing.assert_close(straight[order], mixed, rtol=0, atol=0)
    by_row = each(advantage(attempts(rewards, [0, 0, 1, 1, 1])))
    assert not torch.equal(straight, by_row)


# Token rewards, whitened


def test_returns_are_whitened_over_tokens_so_that_long_replies_count_more():
    # returns 4 (twice) and 1 (once): mean 3, squares 1 + 1 + 4, biased deviation sqrt(2)
    example = batch([0, 1, 1, 0, 1], (3, 2), rewards=[4.0, 1.0])
    close(batch_normalised(example, eps=0.0), [0, 0.5**0.5, 0.5**0.5, 0, -(2**0.5)])
    close(
        batch_normalised(example, unbiased=True, eps=0.0), [0, 3**-0.5, 3**-0.5, 0, -2 * 3**-0.5]
    )  # deviation sqrt(3)


def test_penalties_make_the_returns_of_one_reply_differ():
    # earned 1 - 0.5, then 2; the returns are 2.5 and 2: half of 0.5 from their mean, which is the deviation
    example = batch([0, 1, 1], penalties=[NAN, -0.5, 0.0], rewards=[2.5], turn_rewards=[2.0])
    close(batch_normalised(example, eps=0.0), [0, 1, -1])


def test_the_group_mean_can_be_subtracted_before_whitening():
    # group means 2 and 7 leave -2, 2, -1, 1: mean 0, squares 4 + 4 + 1 + 1, biased deviation sqrt(2.5)
    example = attempts([0.0, 4.0, 6.0, 8.0], [0, 0, 1, 1])
    result = each(batch_normalised(example, baseline="group", eps=0.0))
    close(result, [-2 / 2.5**0.5, 2 / 2.5**0.5, -1 / 2.5**0.5, 1 / 2.5**0.5])


# Discounted returns


def test_a_discount_per_turn_gives_all_tokens_of_a_turn_the_same_return():
    # attempt 0: 4; 2 + 4/2; 1 + 4/2
    example = two_attempts(rewards=[7.0, 8.0], turn_rewards=[1.0, 2.0, 4.0, 8.0])
    assert discounted(example, gamma=0.5).tolist() == [0, 3, 3, 0, 4, 0, 0, 4, 0, 8, 8]


def test_a_discount_per_token_counts_trained_tokens_only():
    # attempt 0 earns 0, 1, 2, 4 on its four tokens: 4; 2 + 4/2; 1 + 4/2; 0 + 3/2. attempt 1 earns 0, 8
    example = two_attempts(rewards=[7.0, 8.0], turn_rewards=[1.0, 2.0, 4.0, 8.0])
    assert discounted(example, gamma=0.5, per="token").tolist() == [0, 1.5, 3, 0, 4, 0, 0, 4, 0, 4, 8]


def test_the_baseline_is_a_mean_of_whole_rewards():
    example = two_attempts(rewards=[7.0, 9.0], turn_rewards=[1.0, 2.0, 4.0, 9.0], group=[0, 1])
    for per in ("turn", "token"):
        assert discounted(example, per=per).tolist() == [0, 7, 7, 0, 6, 0, 0, 4, 0, 9, 9]
        assert discounted(example, per=per, baseline="batch").tolist() == [0, -1, -1, 0, -2, 0, 0, -4, 0, 1, 1]
        assert discounted(example, per=per, baseline="group").tolist() == [0, 0, 0, 0, -1, 0, 0, -3, 0, 0, 0]


def test_penalties_lower_the_returns_of_the_tokens_before_them():
    penalties = [NAN, 1.0, 0.0, NAN, 0.5, NAN, NAN, 0.0, NAN, 2.0, 1.0]
    example = two_attempts(rewards=[5.5, 5.0], turn_rewards=[1.0, 2.0, 4.0, 8.0], penalties=penalties)
    assert discounted(example, per="turn").tolist() == [0, 5.5, 5.5, 0, 5.5, 0, 0, 4, 0, 5, 5]
    assert discounted(example, per="token").tolist() == [0, 5.5, 6.5, 0, 5.5, 0, 0, 4, 0, 5, 7]


def test_a_misspelt_unit_or_baseline_is_named():
    example = attempts([1.0], [0])
    with pytest.raises(UnknownName, match="no unit of discount named 'turns'; did you mean 'turn'"):
        discounted(example, per="turns")  # pyright: ignore[reportArgumentType]
    with pytest.raises(UnknownName, match="no baseline named 'groups'; did you mean 'group'"):
        batch_normalised(example, baseline="groups")  # pyright: ignore[reportArgumentType]


# With a critic


def test_gae_stops_at_the_last_trained_token_and_reads_no_value_of_an_untrained_one():
    # values 0.5, 0.25 and reward 1: errors 0.25 - 0.5 and 1 - 0.25
    example = batch([0, 1, 1, 0], rewards=[1.0], values=[NAN, 0.5, 0.25, NAN])
    assert gae(example).tolist() == [0, 0.5, 0.75, 0]
    assert gae(example, lam=0.0).tolist() == [0, -0.25, 0.75, 0]
    # gamma 0.5: errors 0.5 * 0.25 - 0.5 = -0.375 and 0.75; decay 0.5 * 0.5
    assert gae(example, gamma=0.5, lam=0.5).tolist() == [0, -0.375 + 0.25 * 0.75, 0.75, 0]


def test_gae_continues_across_observations_and_rows_of_a_trajectory():
    values = [NAN, 1.0, 2.0, NAN, 3.0, NAN, NAN, 4.0, NAN, 5.0, 6.0]
    example = two_attempts(rewards=[7.0, 8.0], turn_rewards=[1.0, 2.0, 4.0, 8.0], values=values)
    # attempt 0: errors 0 + 2 - 1, 1 + 3 - 2, 2 + 4 - 3, 4 - 4 = 1, 2, 3, 0; attempt 1: 0 + 6 - 5, 8 - 6 = 1, 2
    assert gae(example, lam=0.0).tolist() == [0, 1, 2, 0, 3, 0, 0, 0, 0, 1, 2]
    # halved with each trained token: 0; 3; 2 + 3/2; 1 + 3.5/2
    assert gae(example, lam=0.5).tolist() == [0, 2.75, 3.5, 0, 3, 0, 0, 0, 0, 2, 2]
    # with lambda 1 and gamma 1: the return less the value
    assert gae(example).tolist() == [0, 7 - 1, 7 - 2, 0, 6 - 3, 0, 0, 4 - 4, 0, 8 - 5, 8 - 6]


def test_a_truncated_trajectory_is_bootstrapped_only_with_the_option():
    example = batch(
        [0, 1, 1, 0, 1, 1],
        (3, 3),
        rewards=[1.0, 1.0],
        values=[NAN, 2.0, 4.0, NAN, 2.0, 4.0],
        truncated=[True, False],
    )
    assert gae(example, gamma=0.5, lam=0.0).tolist() == [0, 0, -3, 0, 0, -3]  # 0.5 * 4 - 2, 1 - 4
    assert gae(example, gamma=0.5, lam=0.0, bootstrap=True).tolist() == [0, 0, -1, 0, 0, -3]  # 1 + 0.5 * 4 - 4


def test_gae_subtracts_penalties_per_token():
    example = batch([0, 1, 1], rewards=[1.25], turn_rewards=[2.0], penalties=[NAN, 0.5, 0.25], values=[NAN, 0.0, 0.0])
    assert gae(example).tolist() == [0, 1.25, 1.75]


def test_gae_over_ten_thousand_tokens_equals_the_recursion():
    generator = torch.Generator().manual_seed(0)
    lengths = (4000, 1, 5999)
    values = torch.randn(10_000, generator=generator)
    example = batch([1] * 10_000, lengths, rewards=[1.0, 2.0, 3.0], values=values.tolist())
    rewards = torch.zeros(10_000)
    ends = [3999, 4000, 9999]
    rewards[ends] = torch.tensor([1.0, 2.0, 3.0])
    expected, following, carried = [0.0] * 10_000, 0.0, 0.0
    for t in range(9999, -1, -1):
        if t in ends:
            following = carried = 0.0
        carried = rewards[t].item() + 0.99 * following - values[t].item() + 0.99 * 0.95 * carried
        following = values[t].item()
        expected[t] = carried
    close(gae(example, gamma=0.99, lam=0.95), expected)


# Steps


def step_batch(states: list[int], group: list[int]) -> Batch:
    # two attempts of two turns, each turn "o s"; attempt 0 earns 0 then 4, attempt 1 earns 1 then 1
    return batch(
        [0, 1, 0, 1] * 2,
        (4, 4),
        turn=[0, 0, 1, 1, 2, 2, 3, 3],
        turn_states=states,
        turn_rewards=[0.0, 4.0, 1.0, 1.0],
        rewards=[4.0, 2.0],
        group=group,
    )


def test_steps_are_compared_with_those_in_the_same_state():
    # returns per turn at gamma 0.5: 2, 4, 1.5, 1; episode 4 and 2 less their mean 3
    example = step_batch([5, 6, 5, 8], [0, 0])
    result = each(gigpo(example, gamma=0.5, scale=False))
    # state 5: 2 and 1.5 less 1.75; states 6 and 8 were seen once
    assert result.tolist() == [1 + 0.25, 1, -1 - 0.25, -1]
    assert each(gigpo(example, gamma=0.5, scale=False, step_weight=2.0)).tolist() == [1.5, 1, -1.5, -1]
    close(each(gigpo(example, gamma=0.5, eps=0.0)), [1 + 1, 1, -1 - 1, -1])


def test_a_state_met_twice_by_one_attempt_is_compared_with_itself_too():
    # returns 2, 4, 1.5, 1; state 5 holds 2, 4, 1.5: mean 2.5
    result = each(gigpo(step_batch([5, 5, 5, 8], [0, 0]), gamma=0.5, scale=False))
    assert result.tolist() == [1 - 0.5, 1 + 1.5, -1 - 1, -1]


def test_a_state_of_another_group_is_another_state():
    result = each(gigpo(step_batch([5, 5, 5, 5], [0, 1]), gamma=0.5, scale=False))
    # episodes alone in their groups earn 0; group 0: 2 and 4 less 3; group 1: 1.5 and 1 less 1.25
    assert result.tolist() == [-1, 1, 0.25, -0.25]


def test_equal_returns_in_a_state_earn_exactly_nothing_however_they_were_summed():
    # 0.3 now, or 0.1 and then 0.2: unequal in double precision, equal in single
    example = batch(
        [0, 1, 0, 1, 0, 1],
        (4, 2),
        turn=[0, 0, 1, 1, 2, 2],
        turn_states=[1, 2, 1],
        turn_rewards=[0.1, 0.2, 0.3],
        rewards=[0.3, 0.3],
    )
    assert gigpo(example, gamma=1.0, eps=0.0).tolist() == [0.0] * 6


# A teacher


def test_tokens_that_the_teacher_finds_likelier_get_a_positive_advantage():
    example = batch([0, 1, 1], teacher_logprobs=[NAN, -1.0, -3.0], sampler_logprobs=[NAN, -2.0, -1.0])
    assert distilled(example).tolist() == [0, 1, -2]
    assert distilled(example, weight=0.5).tolist() == [0, 0.5, -1]
    recomputed = replace(example, old_logprobs=torch.tensor([NAN, -4.0, -4.0]))
    assert distilled(recomputed).tolist() == [0, 3, 1]


# All of them

EVERY: list[Callable[[Batch], torch.Tensor]] = [
    group_normalised,
    group_centred_batch_scaled,
    leave_one_out,
    batch_centred,
    batch_normalised,
    discounted,
    lambda example: discounted(example, gamma=0.9, per="token"),
    gae,
    gigpo,
    distilled,
]


def full(trained: list[int], lengths: tuple[int, ...]) -> Batch:
    row = [1.0 if token else NAN for token in trained]
    states = [0] * len(lengths)
    rewards = [float(index) for index in range(len(lengths))]
    rows = {"values": row, "teacher_logprobs": row, "sampler_logprobs": row, "penalties": row}
    return batch(trained, lengths, turn_states=states, rewards=rewards, turn_rewards=rewards, **rows)


@pytest.mark.parametrize("advantage", EVERY)
def test_advantages_are_single_precision_and_zero_on_untrained_tokens(advantage: Callable[[Batch], torch.Tensor]):
    example = full([0, 1, 0, 0, 1, 1, 0, 0], (3, 4, 1))
    result = advantage(example)
    assert result.dtype == torch.float32
    assert result.shape == (8,)
    assert result.isfinite().all()
    assert result[~example.trained].tolist() == [0.0] * 5


@pytest.mark.parametrize("advantage", EVERY)
def test_a_batch_without_trained_tokens_earns_nothing(advantage: Callable[[Batch], torch.Tensor]):
    assert advantage(full([0, 0, 0], (1, 2))).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(("advantage", "missing"), [(gae, "critic"), (gigpo, "reports states"), (distilled, "teacher")])
def test_the_error_names_the_missing_input(advantage: Callable[[Batch], torch.Tensor], missing: str):
    with pytest.raises(ConfigError, match=rf"\(got None\).*{missing}"):
        advantage(attempts([1.0], [0]))


# Rewards of spans

SPANS = [NAN, 2.0, NAN, NAN, 0.0, NAN, NAN, NAN, NAN, 1.0, NAN]
"""In `two_attempts`: 2 at the first sampled token of turn 0, 0 at the one of turn 1; 1 in the other attempt."""


def test_spans_of_a_group_are_normalised_together_and_tokens_get_the_later_ones():
    # spans 2, 0 and 1: mean 1, deviation sqrt(2/3), so +a, -a and 0; outcomes 3 and 5: -1 and +1
    example = two_attempts(span_rewards=SPANS, rewards=[5.0, 6.0])
    a = 1.5**0.5
    close(
        group_normalised_process(example, outcome_weight=0.5, eps=0.0),
        [0, -0.5, -a - 0.5, 0, -a - 0.5, 0, 0, -0.5, 0, 0.5, 0.5],
    )
    close(group_normalised_process(example, outcome_weight=0.0, scale=False), [0, 0, -1, 0, -1, 0, 0, 0, 0, 0, 0])


def test_without_spans_the_process_advantage_is_that_of_the_outcome():
    example = two_attempts(rewards=[1.0, 3.0])
    close(group_normalised_process(example), group_normalised(example).tolist())
    zero = two_attempts(rewards=[1.0, 1.0], span_rewards=[NAN] * 11)
    assert group_normalised_process(zero).tolist() == [0.0] * 11


def test_spans_of_another_group_are_not_compared():
    example = two_attempts(span_rewards=SPANS, rewards=[2.0, 1.0], group=[0, 1])
    close(group_normalised_process(example, eps=0.0), [0, 0, -1, 0, -1, 0, 0, 0, 0, 0, 0])


def test_a_reward_of_a_span_counts_from_its_token_backwards():
    # attempt 0 has 2 at its first sampled token, 0 at its third and 4 at the end; attempt 1 has 1, then 3
    example = two_attempts(span_rewards=SPANS, rewards=[6.0, 4.0], turn_rewards=[0.0, 0.0, 4.0, 3.0])
    per_token = discounted(example, gamma=0.5, per="token")
    close(per_token, [0, 2 + 0.5, 1, 0, 2, 0, 0, 4, 0, 1 + 1.5, 3])
    close(discounted(example, gamma=0.5), [0, 2 + 1, 2 + 1, 0, 2, 0, 0, 4, 0, 4, 4])
    values = replace(example, values=torch.tensor([NAN, 1.0, 2.0, NAN, 3.0, NAN, NAN, 1.0, NAN, 0.5, 2.0]))
    # errors with lam 0: 2 + 2 - 1, 0 + 3 - 2, 0 + 1 - 3, 4 - 1; 1 + 2 - 0.5, 3 - 2
    close(gae(values, lam=0.0), [0, 3, 1, 0, -2, 0, 0, 3, 0, 2.5, 1])
