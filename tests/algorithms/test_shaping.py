"""Reward shaping, computed by hand."""

import math
from collections.abc import Sequence

import pytest
import torch

from roll.algorithms.shaping import RunningStats, clipped, format, normalised, overlong, scaled
from roll.errors import ConfigError, UnknownName
from roll.types import Batch
from tests.algorithms.build import batch

NONE = RunningStats()


def attempts(rewards: Sequence[float], group: Sequence[int]) -> Batch:
    return batch([1] * len(rewards), (1,) * len(rewards), rewards=rewards, group=group)


def test_rewards_are_bounded_on_both_sides():
    assert clipped(attempts([-5.0, 0.5, 9.0], [0] * 3), NONE, low=-1.0, high=2.0).tolist() == [-1.0, 0.5, 2.0]


def test_rewards_are_scaled_and_then_shifted():
    assert scaled(attempts([1.0, 3.0], [0, 0]), NONE, factor=2.0, shift=-1.0).tolist() == [1.0, 5.0]


# Rewards 1, 3 | 4, 8 in groups 5 and 2: group means 2 and 6, deviations 1 and 2; batch mean 4, squares 9 + 1 + 0 + 16,
# deviation sqrt(6.5). So far in the run: mean 2, deviation 4.
GIVEN = attempts([1.0, 4.0, 3.0, 8.0], [5, 2, 5, 2])
RUNNING = RunningStats(count=10, mean=2.0, sum_squares=160.0)
CENTRED = {
    "none": [1.0, 4.0, 3.0, 8.0],
    "group": [-1.0, -2.0, 1.0, 2.0],
    "batch": [-3.0, 0.0, -1.0, 4.0],
    "running": [-1.0, 2.0, 1.0, 6.0],
}
DEVIATIONS = {
    "none": [1.0, 1.0, 1.0, 1.0],
    "group": [1.0, 2.0, 1.0, 2.0],
    "batch": [6.5**0.5] * 4,
    "running": [4.0] * 4,
}


@pytest.mark.parametrize("mean", CENTRED)
@pytest.mark.parametrize("std", DEVIATIONS)
def test_any_mean_goes_with_any_deviation(mean: str, std: str):
    expected = torch.tensor(CENTRED[mean]) / torch.tensor(DEVIATIONS[std])
    result = normalised(GIVEN, RUNNING, mean=mean, std=std, eps=0.0)  # pyright: ignore[reportArgumentType]
    torch.testing.assert_close(result, expected)
    assert result.dtype == torch.float32


def test_the_unbiased_deviation_divides_by_one_less_in_every_extent():
    for std, deviation in (
        ("group", [2**0.5, 8**0.5] * 2),
        ("batch", [(26 / 3) ** 0.5] * 4),
        ("running", [160**0.5 / 3] * 4),
    ):
        result = normalised(GIVEN, RUNNING, mean="none", std=std, unbiased=True, eps=0.0)  # pyright: ignore[reportArgumentType]
        torch.testing.assert_close(result, GIVEN.rewards / torch.tensor(deviation))


def test_eps_is_added_to_the_deviation():
    torch.testing.assert_close(normalised(GIVEN, RUNNING, eps=1.0), torch.tensor([-0.5, -2 / 3, 0.5, 2 / 3]))


def test_without_deviation_the_result_is_exactly_zero_whatever_the_mean():
    example = attempts([0.1] * 7, [0] * 7)
    running = RunningStats().after(example.rewards)
    for mean in CENTRED:
        for std in ("group", "batch", "running"):
            result = normalised(example, running, mean=mean, std=std, eps=0.0)  # pyright: ignore[reportArgumentType]
            assert result.tolist() == [0.0] * 7


def test_a_group_of_one_becomes_exactly_zero_and_never_nan():
    for unbiased in (False, True):
        assert normalised(attempts([5.0, -2.0], [0, 1]), NONE, unbiased=unbiased, eps=0.0).tolist() == [0.0, 0.0]


def test_a_misspelt_extent_is_named():
    for example in ({"mean": "groups"}, {"std": "groups"}):
        with pytest.raises(UnknownName, match="no extent named 'groups'; did you mean 'group'"):
            normalised(GIVEN, RUNNING, **example)  # pyright: ignore[reportArgumentType]


def test_the_penalty_for_length_grows_over_the_buffer_and_no_further():
    # lengths 6, 7, 9, 10, 12 of trained tokens, and one untrained token each; free up to 10 - 4
    lengths = (6, 7, 9, 10, 12)
    example = batch(
        [trained for n in lengths for trained in (0, *[1] * n)], [n + 1 for n in lengths], rewards=[1.0] * 5
    )
    assert overlong(example, NONE, max_tokens=10, buffer=4).tolist() == [1.0, 0.75, 0.25, 0.0, 0.0]
    assert overlong(example, NONE, max_tokens=10, buffer=4, factor=2.0).tolist() == [1.0, 0.5, -0.5, -1.0, -1.0]


def test_the_length_of_a_trajectory_is_that_of_all_its_rows():
    example = batch([0, 1, 1, 0, 1, 1, 0, 1], (3, 3, 2), trajectory=[0, 0, 1], rewards=[1.0, 1.0])
    assert overlong(example, NONE, max_tokens=4, buffer=2).tolist() == [0.0, 1.0]


def test_an_overlong_penalty_needs_a_buffer():
    with pytest.raises(ConfigError, match=r"overlong: buffer must be above 0 \(got 0\)"):
        overlong(GIVEN, NONE, max_tokens=10, buffer=0)


def test_a_wrong_format_is_penalised_and_a_missing_one_is_not():
    example = batch([1] * 4, (1,) * 4, rewards=[1.0, 1.0, 0.0, 0.0], parts={"format": [1.0, 0.0, 0.5, math.nan]})
    assert format(example, NONE).tolist() == [1.0, 0.0, -1.0, 0.0]
    assert format(example, NONE, penalty=0.25).tolist() == [1.0, 0.75, -0.25, 0.0]


def test_a_part_that_no_reward_has_is_an_error():
    example = batch([1], rewards=[1.0], parts={"style": [1.0], "format": [math.nan]})
    for part in ("format", "shape"):
        with pytest.raises(ConfigError, match=rf"no reward has a part '{part}' \(got format, style\)"):
            format(example, NONE, part=part)


def test_shaping_does_not_change_its_input():
    before = GIVEN.rewards.clone()
    clipped(GIVEN, NONE, low=2.0, high=3.0)
    normalised(GIVEN, RUNNING)
    assert torch.equal(GIVEN.rewards, before)
