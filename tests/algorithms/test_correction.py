"""Correction factors, computed by hand."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from roll.algorithms.correction import LEVELS, mask, reject, truncate
from roll.errors import UnknownName
from roll.types import Tokens
from tests.algorithms.build import tokens

NAN = math.nan


def of_ratios(ratios: list[float], **example: Any) -> Tokens:
    """Tokens that the trainer finds `ratio` times as likely as the sampler did."""
    return tokens([5.0] * len(ratios), sampler_logprobs=[-math.log(ratio) for ratio in ratios], **example)


def two_rows() -> Tokens:
    """Row 0: turn 3 with ratios 2 and 0.25, turn 8 with 4; row 1: turn 5 with 0.5; NaN where nothing is trained."""
    return of_ratios(
        [NAN, 2.0, 0.25, NAN, 4.0, 0.5, NAN],
        trained=[0, 1, 1, 0, 1, 1, 0],
        row=[0, 0, 0, 0, 0, 1, 1],
        turn=[3, 3, 3, 8, 8, 5, 5],
    )


def trained(factor: torch.Tensor) -> list[float]:
    """The factors of the trained tokens of `two_rows`; the others must at least be numbers."""
    assert factor.isfinite().all()
    return [round(value, 5) for value in factor[two_rows().trained].tolist()]


def test_the_level_sets_the_scope_of_the_ratio():
    def untruncated(level: str) -> list[float]:
        return trained(truncate(two_rows(), level=level, cap=100.0))

    assert untruncated("token") == [2.0, 0.25, 4.0, 0.5]
    assert untruncated("turn") == [0.5, 0.5, 4.0, 0.5]
    assert untruncated("sequence") == [2.0, 2.0, 2.0, 0.5]
    assert untruncated("geometric") == [round(2 ** (1 / 3), 5)] * 3 + [0.5]


def test_truncation_bounds_from_above_only():
    assert trained(truncate(two_rows())) == [2.0, 0.25, 2.0, 0.5]
    assert trained(truncate(two_rows(), level="turn", cap=3.0)) == [0.5, 0.5, 3.0, 0.5]


def test_a_mask_keeps_the_ratio_inside_and_drops_what_is_outside():
    assert trained(mask(two_rows(), low=0.4, high=2.5)) == [2.0, 0.0, 0.0, 0.5]
    assert trained(mask(two_rows(), level="turn", low=0.4, high=2.5)) == [0.5, 0.5, 0.0, 0.5]
    assert trained(mask(two_rows(), level="sequence", low=0.6, high=2.5)) == [2.0, 2.0, 2.0, 0.0]


def test_a_rejected_sequence_is_dropped_whole_and_a_kept_one_is_not_weighed():
    assert trained(reject(two_rows(), low=0.4, high=1.9)) == [0.0, 0.0, 0.0, 1.0]
    assert trained(reject(two_rows(), level="geometric", low=0.6, high=1.9)) == [1.0, 1.0, 1.0, 0.0]
    assert trained(reject(two_rows(), level="turn", low=0.4, high=1.9)) == [1.0, 1.0, 0.0, 1.0]


@pytest.mark.parametrize("correct", [mask, reject])
def test_the_bounds_themselves_are_inside(correct: Any):
    assert correct(of_ratios([1.0, 1.0]), level="token", low=1.0, high=1.0).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("correct", [truncate, mask, reject])
def test_a_factor_is_never_part_of_a_gradient(correct: Any, level: str):
    example = two_rows()
    example = replace(example, old_logprobs=example.logprobs, sampler_logprobs=example.logprobs)
    factor = correct(example, level=level)
    assert not factor.requires_grad
    assert factor.dtype == torch.float32 and factor.shape == (7,)


@pytest.mark.parametrize("level", LEVELS)
def test_a_sampler_that_was_the_policy_needs_no_correction(level: str):
    example = of_ratios([1.0, 1.0, 1.0], row=[0, 0, 2])
    assert [correct(example, level=level).tolist() for correct in (truncate, mask, reject)] == [[1.0] * 3] * 3


@pytest.mark.parametrize("level", ["turn", "sequence"])
def test_a_product_too_large_for_a_float_is_an_outlier_like_any_other(level: str):
    example = tokens([0.0] * 2, old_logprobs=[500.0, 500.0], advantages=[1.0, 1.0])
    assert truncate(example, level=level).tolist() == [2.0, 2.0]
    assert mask(example, level=level).tolist() == reject(example, level=level).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("level", LEVELS)
def test_empty_inputs_and_sequences_without_trained_tokens_work(level: str):
    assert truncate(of_ratios([NAN, NAN], trained=[0, 0]), level=level).tolist() == [1.0, 1.0]
    assert truncate(of_ratios([]), level=level).tolist() == []


def test_the_mean_of_a_long_sequence_is_right():
    num = 100_000
    example = tokens([0.0] * num, old_logprobs=[0.1] * num)  # one by one in single precision they sum to 9998.6
    result = truncate(example, level="geometric")
    torch.testing.assert_close(result, torch.full((num,), math.exp(0.1)), rtol=1e-6, atol=0)


def test_an_unknown_level_is_named_with_the_nearest():
    with pytest.raises(UnknownName, match="no level of correction named 'sequences'; did you mean 'sequence'"):
        truncate(two_rows(), level="sequences")
