"""How far a generator may be from the trainer before a version is refused."""

import pytest
import torch

from roll.serving.canary import EXACT_MAX, ROUNDED_MEAN, allowed


def test_the_limit_of_32_bits_does_not_depend_on_the_text() -> None:
    assert allowed(torch.tensor([-1.0, -30.0]), exact=True) == EXACT_MAX


def test_with_16_bits_a_text_of_equal_words_has_the_least_limit() -> None:
    assert allowed(torch.full((64,), -11.9), exact=False) == ROUNDED_MEAN
    assert allowed(torch.tensor([-11.9]), exact=False) == ROUNDED_MEAN


def test_with_16_bits_the_limit_grows_with_the_spread_of_the_logprobs() -> None:
    # -12, -14, -16, -18 are 1, 1, 3, 3 from their mean: a variance of 20 / 3, a spread of 2.58, of which a twentieth.
    found = allowed(torch.tensor([-12.0, -14.0, -16.0, -18.0]), exact=False)
    assert found == pytest.approx(0.05 * (20 / 3) ** 0.5, rel=1e-5)
