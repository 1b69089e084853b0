"""Loss weights combine mask and denominator; no split of the batch changes the sum."""

import math
from functools import partial

import pytest
import torch

from roll.algorithms.objective import weighted_sum
from roll.algorithms.segments import (
    constant,
    rows_of,
    sequence_mean_token_mean,
    sequence_mean_token_sum,
    token_mean,
)
from roll.errors import ConfigError
from tests.algorithms.build import batch

ALL = (token_mean, sequence_mean_token_mean, sequence_mean_token_sum, partial(constant, tokens=4))


def test_token_mean_gives_every_trained_token_the_same_weight():
    result = token_mean(batch([0, 1, 1, 0, 0, 1, 1], (3, 4)))
    assert result.tolist() == [0.0, 0.25, 0.25, 0.0, 0.0, 0.25, 0.25]


def test_sequence_mean_gives_every_sequence_the_same_weight():
    result = sequence_mean_token_mean(batch([0, 1, 0, 1, 1, 1, 1], (2, 5)))
    assert result.tolist() == [0.0, 0.5, 0.0, 0.125, 0.125, 0.125, 0.125]


def test_token_sum_averages_over_sequences_alone():
    result = sequence_mean_token_sum(batch([0, 1, 0, 1, 1, 1, 1], (2, 5)))
    assert result.tolist() == [0.0, 0.5, 0.0, 0.5, 0.5, 0.5, 0.5]


def test_a_constant_replaces_the_length():
    result = constant(batch([0, 1, 0, 1, 1, 1, 1], (2, 5)), tokens=8)
    assert result.tolist() == [0.0, 0.0625, 0.0, 0.0625, 0.0625, 0.0625, 0.0625]  # 1 / (2 sequences * 8)


def test_a_constant_of_zero_is_refused():
    with pytest.raises(ConfigError, match=r"tokens must be at least 1 \(got 0\)"):
        constant(batch([1]), tokens=0)


def test_a_sequence_without_trained_tokens_does_not_count():
    example = batch([0, 1, 0, 0, 1, 1], (2, 2, 0, 2))
    assert sequence_mean_token_mean(example).tolist() == [0.0, 0.5, 0.0, 0.0, 0.25, 0.25]
    assert sequence_mean_token_sum(example).tolist() == [0.0, 0.5, 0.0, 0.0, 0.5, 0.5]
    assert constant(example, tokens=4).tolist() == [0.0, 0.125, 0.0, 0.0, 0.125, 0.125]


def test_a_batch_without_trained_tokens_weighs_nothing():
    for weights_of in ALL:
        assert weights_of(batch([0, 0, 0], (1, 2))).tolist() == [0.0, 0.0, 0.0]
        assert weights_of(batch([], (), rewards=[])).tolist() == []


def test_weights_are_in_single_precision():
    assert {weights_of(batch([0, 1])).dtype for weights_of in ALL} == {torch.float32}


def test_the_sum_does_not_depend_on_how_the_batch_is_split():
    whole = batch([0, 1, 0, 1, 1, 1, 0, 1, 1], (2, 4, 3))
    losses = torch.tensor([9.0, 1.0, 9.0, 2.0, 3.0, 4.0, 9.0, 5.0, 6.0])
    expected = (21 / 6, (1 + 3 + 5.5) / 3, 21 / 3, 21 / 12)
    for weights_of, mean in zip(ALL, expected, strict=True):
        weights = weights_of(whole)
        parts = [weighted_sum(losses[a:b], weights[a:b]) for a, b in ((0, 2), (2, 6), (6, 9))]
        assert math.isclose(weighted_sum(losses, weights).item(), mean, rel_tol=1e-6)
        assert math.isclose(sum(part.item() for part in parts), mean, rel_tol=1e-6)


def test_each_token_is_mapped_to_its_sequence_despite_empty_ones():
    assert rows_of(batch([1, 1, 1], (0, 2, 0, 1))).tolist() == [1, 1, 3]


def test_nothing_leaks_from_an_untrained_token_not_even_nan():
    row = torch.tensor([math.nan, 2.0, math.inf], requires_grad=True)
    total = weighted_sum(row, torch.tensor([0.0, 0.5, 0.0]))
    total.backward()
    assert total.item() == 1.0
    assert row.grad is not None
    assert row.grad.tolist() == [0.0, 0.5, 0.0]
