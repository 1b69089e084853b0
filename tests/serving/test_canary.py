"""Tolerated difference between a generator and the trainer."""

import pytest
import torch

from roll.serving.canary import EXACT_MAX, ROUNDED_MEAN, tolerance


def test_the_fp32_tolerance_does_not_depend_on_the_text() -> None:
    assert tolerance(torch.tensor([-1.0, -30.0]), exact=True) == EXACT_MAX


def test_in_bf16_equal_logprobs_have_the_smallest_tolerance() -> None:
    assert tolerance(torch.full((64,), -11.9), exact=False) == ROUNDED_MEAN
    assert tolerance(torch.tensor([-11.9]), exact=False) == ROUNDED_MEAN


def test_in_bf16_the_tolerance_grows_with_the_spread_of_the_logprobs() -> None:
    # -12, -14, -16, -18 are 1, 1, 3, 3 from their mean: a variance of 20 / 3, a spread of 2.58, of which a twentieth.
    limit = tolerance(torch.tensor([-12.0, -14.0, -16.0, -18.0]), exact=False)
    assert limit == pytest.approx(0.05 * (20 / 3) ** 0.5, rel=1e-5)
