"""Tolerated difference between a generator and the trainer."""

import pytest
import torch

from roll.serving.canary import EXACT_MAX, QUANTISED_MEAN, ROUNDED_MEAN, precision_of, tolerance


def test_the_fp32_tolerance_does_not_depend_on_the_text() -> None:
    assert tolerance(torch.tensor([-1.0, -30.0]), "exact") == EXACT_MAX


def test_in_bf16_equal_logprobs_have_the_smallest_tolerance() -> None:
    assert tolerance(torch.full((64,), -11.9), "rounded") == ROUNDED_MEAN
    assert tolerance(torch.tensor([-11.9]), "rounded") == ROUNDED_MEAN


def test_in_bf16_the_tolerance_grows_with_the_spread_of_the_logprobs() -> None:
    # -12, -14, -16, -18 are 1, 1, 3, 3 from their mean: a variance of 20 / 3, a spread of 2.58, of which a twentieth.
    limit = tolerance(torch.tensor([-12.0, -14.0, -16.0, -18.0]), "rounded")
    assert limit == pytest.approx(0.05 * (20 / 3) ** 0.5, rel=1e-5)


def test_quantised_weights_are_recognised_by_their_dtypes_and_have_a_wider_tolerance() -> None:
    kinds = [["torch.int8", "torch.float32"], ["torch.float8_e4m3fn", "torch.bfloat16"], ["torch.bfloat16"], []]
    assert [precision_of(kind) for kind in kinds] == ["quantised", "quantised", "rounded", "exact"]
    assert tolerance(torch.full((64,), -11.9), "quantised") == QUANTISED_MEAN
    # half of the spread of 2.58
    limit = tolerance(torch.tensor([-12.0, -14.0, -16.0, -18.0]), "quantised")
    assert limit == pytest.approx(0.5 * (20 / 3) ** 0.5, rel=1e-5)
