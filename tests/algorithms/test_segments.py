"""Sums over ragged parts, computed by hand; untrained tokens hold NaN wherever they could leak."""

import math

import torch

from roll.algorithms.segments import (
    deviation_by,
    divide_or_zero,
    last_of_run,
    mean_by,
    num_trained,
    owners,
    siblings,
    suffix_sums,
    sum_by,
    sum_to_go,
    to_tokens,
    token_rewards,
    turn_returns,
    turns_to_tokens,
)
from roll.types import Batch
from tests.algorithms.build import batch

NAN = math.nan


def two_attempts(turn_rewards: list[float], penalties: list[float] | None = None) -> Batch:
    # attempt 0: row "o s s o s o" (turns 0, 1, and 2 with an observation only) and row "o s" (turn 3)
    # attempt 1: row "o s s" (turn 4)
    return batch(
        [0, 1, 1, 0, 1, 0, 0, 1, 0, 1, 1],
        (6, 2, 3),
        trajectory=[0, 0, 1],
        turn=[0, 0, 0, 1, 1, 2, 3, 3, 4, 4, 4],
        turn_rewards=turn_rewards,
        penalties=penalties,
        rewards=[0.0, 0.0],
    )


def test_sums_are_taken_by_index_in_any_order():
    result = sum_by(torch.tensor([2, 0, 2]), torch.tensor([1.0, 2.0, 4.0]), 4)
    assert result.tolist() == [2.0, 0.0, 5.0, 0.0]


def test_means_and_deviations_are_given_for_every_entry_of_their_index():
    index, values = torch.tensor([1, 0, 1, 0]), torch.tensor([1.0, 5.0, 3.0, 5.0])
    assert mean_by(index, values).tolist() == [2.0, 5.0, 2.0, 5.0]
    assert deviation_by(index, values, unbiased=False).tolist() == [1.0, 0.0, 1.0, 0.0]
    torch.testing.assert_close(
        deviation_by(index, values, unbiased=True), torch.tensor([2**0.5, 0, 2**0.5, 0], dtype=torch.float64)
    )


def test_the_deviation_of_a_single_entry_is_zero():
    assert deviation_by(torch.tensor([0]), torch.tensor([7.0]), unbiased=True).tolist() == [0.0]


def test_division_by_a_deviation_of_zero_gives_exactly_zero():
    result = divide_or_zero(torch.tensor([3.0, 3.0]), torch.tensor([0.0, 1.0]), 0.5)
    assert result.tolist() == [0.0, 2.0]


def test_entries_are_siblings_only_where_all_keys_are_equal():
    result = siblings(torch.tensor([9, 9, 4, 4, 9]), torch.tensor([1, 2, 1, 1, 1])).tolist()
    assert [result[0] == other for other in result] == [True, False, False, False, True]
    assert [result[2] == other for other in result] == [False, False, True, True, False]
    assert max(result) == 2


def test_a_trajectory_owns_the_tokens_of_all_its_rows():
    assert owners(two_attempts([0.0] * 5)).tolist() == [0] * 8 + [1] * 3
    assert num_trained(two_attempts([0.0] * 5)).tolist() == [4.0, 2.0]


def test_values_of_trajectories_and_turns_go_to_their_trained_tokens():
    example = two_attempts([0.0] * 5)
    assert to_tokens(example, torch.tensor([2.0, 3.0])).tolist() == [0, 2, 2, 0, 2, 0, 0, 2, 0, 3, 3]
    result = turns_to_tokens(example, torch.tensor([1.0, 2.0, NAN, 4.0, 5.0]))
    assert result.tolist() == [0, 1, 1, 0, 2, 0, 0, 4, 0, 5, 5]


def test_a_turns_reward_lies_on_its_last_trained_token_though_an_observation_follows():
    result = token_rewards(two_attempts([1.0, 2.0, 0.0, 4.0, 8.0]))
    assert result.tolist() == [0, 0, 1, 0, 2, 0, 0, 4, 0, 0, 8]


def test_the_reward_of_a_turn_in_which_nothing_was_sampled_goes_to_the_last_trained_token_before():
    result = token_rewards(two_attempts([1.0, 2.0, 16.0, 4.0, 8.0]))
    assert result.tolist() == [0, 0, 1, 0, 18, 0, 0, 4, 0, 0, 8]


def test_without_one_before_the_reward_goes_to_the_first_trained_token_after():
    # attempt 0 is there so that its last token would be "before" if attempts were mixed up
    example = batch(
        [0, 1, 0, 0, 1, 1],
        (2, 4),
        turn=[0, 0, 1, 2, 2, 2],
        turn_trajectory=[0, 1, 1],
        turn_rewards=[1.0, 2.0, 4.0],
    )
    assert token_rewards(example).tolist() == [0, 1, 0, 0, 2, 4]


def test_the_reward_of_a_trajectory_without_trained_tokens_goes_to_no_token():
    example = batch([0, 1, 0, 0], (2, 2), turn_rewards=[1.0, 5.0])
    assert token_rewards(example).tolist() == [0, 1, 0, 0]
    assert token_rewards(batch([0, 0], (2,), rewards=[3.0])).tolist() == [0, 0]


def test_penalties_are_subtracted_at_their_tokens_and_never_read_at_untrained_ones():
    penalties = [NAN, 0.5, 0.25, NAN, 0.5, NAN, NAN, 1.0, NAN, 0.0, 2.0]
    result = token_rewards(two_attempts([1.0, 2.0, 0.0, 4.0, 8.0], penalties))
    assert result.tolist() == [0, -0.5, 0.75, 0, 1.5, 0, 0, 3, 0, 0, 6]


def test_sums_to_go_pass_over_untrained_tokens_and_from_row_to_row():
    example = two_attempts([0.0] * 5)
    row = torch.tensor([NAN, 1.0, 2.0, NAN, 4.0, NAN, NAN, 8.0, NAN, 16.0, 32.0])
    assert sum_to_go(example, row, 1.0).tolist() == [0, 15, 14, 0, 12, 0, 0, 8, 0, 48, 32]
    # 8; 4 + 8/2; 2 + 8/2; 1 + 6/2
    assert sum_to_go(example, row, 0.5).tolist() == [0, 4, 6, 0, 8, 0, 0, 8, 0, 32, 32]
    assert sum_to_go(example, row, 0.0).tolist() == [0, 1, 2, 0, 4, 0, 0, 8, 0, 16, 32]


def test_turn_returns_are_discounted_per_turn_and_not_per_token():
    # 4; 0 + 4/2; 2 + 2/2; 1 + 3/2
    assert turn_returns(two_attempts([1.0, 2.0, 0.0, 4.0, 8.0]), 0.5).tolist() == [2.5, 3, 2, 4, 8]


def test_penalties_count_against_the_turn_of_their_token():
    penalties = [NAN, 0.5, 0.25, NAN, 0.5, NAN, NAN, 1.0, NAN, 0.0, 2.0]
    result = turn_returns(two_attempts([1.0, 2.0, 0.0, 4.0, 8.0], penalties), 1.0)
    assert result.tolist() == [4.75, 4.5, 3, 3, 6]  # turns earn 0.25, 1.5, 0, 3; 6


def test_trajectories_with_interleaved_turn_numbers_are_separated():
    example = batch([1, 1, 1, 1], (2, 2), turn=[0, 2, 1, 3], turn_rewards=[1.0, 2.0, 4.0, 8.0])
    assert turn_returns(example, 1.0).tolist() == [5, 10, 4, 8]
    assert token_rewards(example).tolist() == [1, 4, 2, 8]


def test_suffix_sums_of_long_and_short_runs_equal_the_plain_recursion():
    generator = torch.Generator().manual_seed(0)
    lengths = [1, 37, 2, 64, 65, 1]
    owner = torch.repeat_interleave(torch.tensor([3, 0, 7, 1, 2, 5]), torch.tensor(lengths))
    values = torch.randn(len(owner), generator=generator)
    for decay in (0.9, 1.0):
        expected, following, before = [], 0.0, -1
        for here, value in zip(owner.tolist()[::-1], values.tolist()[::-1], strict=True):
            following = value + (decay * following if here == before else 0.0)
            before = here
            expected.append(following)
        torch.testing.assert_close(
            suffix_sums(owner, values, decay), torch.tensor(expected[::-1], dtype=torch.float64), rtol=1e-12, atol=1e-12
        )


def test_rounding_does_not_cross_owners():
    result = suffix_sums(torch.tensor([0, 0, 1, 1]), torch.tensor([1e30, NAN, 0.0, 0.1]), 1.0)
    assert result[2:].tolist() == torch.tensor([0.1, 0.1]).double().tolist()


def test_suffix_sums_do_not_change_their_input():
    values = torch.tensor([1.0, 2.0], dtype=torch.float64)
    assert suffix_sums(torch.tensor([0, 0]), values, 0.5).tolist() == [2.0, 2.0]
    assert values.tolist() == [1.0, 2.0]


def test_no_tokens_give_empty_results():
    nothing = torch.zeros(0, dtype=torch.int64)
    assert last_of_run(nothing).tolist() == []
    assert suffix_sums(nothing, torch.zeros(0), 0.9).tolist() == []
    example = batch([0, 0, 0], (1, 2), rewards=[1.0, 2.0])
    assert sum_to_go(example, torch.full((3,), NAN), 0.9).tolist() == [0, 0, 0]
    assert num_trained(example).tolist() == [0, 0]
