"""Weights carry mask and denominator; no cut of the batch changes the sum."""

import math

import torch

from roll.algorithms.aggregation import sequence_mean_token_mean, token_mean, weighted_sum
from roll.types import Batch


def batch(trained: list[int], lengths: tuple[int, ...]) -> Batch:
    size = len(trained)
    return Batch(
        ids=torch.arange(size),
        trained=torch.tensor(trained, dtype=torch.bool),
        sampler_logprobs=torch.zeros(size),
        versions=torch.zeros(size, dtype=torch.int32),
        lengths=lengths,
        trajectory=torch.arange(len(lengths)),
        group=torch.zeros(len(lengths), dtype=torch.int64),
        rewards=torch.zeros(len(lengths)),
    )


def test_token_mean_gives_every_trained_token_the_same_weight():
    found = token_mean(batch([0, 1, 1, 0, 0, 1, 1], (3, 4)))
    assert found.tolist() == [0.0, 0.25, 0.25, 0.0, 0.0, 0.25, 0.25]


def test_sequence_mean_gives_every_sequence_the_same_weight():
    found = sequence_mean_token_mean(batch([0, 1, 0, 1, 1, 1, 1], (2, 5)))
    assert found.tolist() == [0.0, 0.5, 0.0, 0.125, 0.125, 0.125, 0.125]


def test_a_sequence_without_trained_tokens_does_not_count():
    found = sequence_mean_token_mean(batch([0, 1, 0, 0, 1, 1], (2, 2, 2)))
    assert found.tolist() == [0.0, 0.5, 0.0, 0.0, 0.25, 0.25]


def test_a_batch_without_trained_tokens_weighs_nothing():
    for weights_of in (token_mean, sequence_mean_token_mean):
        assert weights_of(batch([0, 0, 0], (1, 2))).tolist() == [0.0, 0.0, 0.0]


def test_the_sum_does_not_depend_on_how_the_batch_is_cut():
    whole = batch([0, 1, 0, 1, 1, 1, 0, 1, 1], (2, 4, 3))
    losses = torch.tensor([9.0, 1.0, 9.0, 2.0, 3.0, 4.0, 9.0, 5.0, 6.0])
    for weights_of, expected in ((token_mean, 21 / 6), (sequence_mean_token_mean, (1 + 3 + 5.5) / 3)):
        weights = weights_of(whole)
        starts = {0: (0, 2), 1: (2, 6), 2: (6, 9)}
        parts = [weighted_sum(losses[a:b], weights[a:b]) for a, b in starts.values()]
        assert math.isclose(weighted_sum(losses, weights).item(), expected, rel_tol=1e-6)
        assert math.isclose(sum(part.item() for part in parts), expected, rel_tol=1e-6)


def test_nothing_leaks_from_an_untrained_token_not_even_nan():
    row = torch.tensor([math.nan, 2.0, math.inf], requires_grad=True)
    total = weighted_sum(row, torch.tensor([0.0, 0.5, 0.0]))
    total.backward()
    assert total.item() == 1.0
    assert row.grad is not None
    assert row.grad.tolist() == [0.0, 0.5, 0.0]
