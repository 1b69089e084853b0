"""Accuracy and calibration of scores, worked out by hand."""

import math
from collections.abc import Sequence

import pytest
import torch

from roll.algorithms.reward_losses import Scored, linear_value, scored_examples
from roll.algorithms.reward_metrics import (
    accuracy,
    brier_score,
    calibration_error,
    held_out_metrics,
    probabilities,
    select,
)
from roll.types import Tokens


def scored(scores: Sequence[float], targets: Sequence[Sequence[float]]) -> Scored:
    return scored_examples(torch.tensor(scores, dtype=torch.float64), targets, [0.0] * len(targets))


def test_a_pair_is_right_if_the_chosen_side_has_the_higher_score_and_a_tie_counts_half():
    assert accuracy(scored([2, 1, 0, 3, 5, 5, 7, 6], [()] * 4), rated=False) == (1 + 0 + 0.5 + 1) / 4


def test_a_label_is_right_if_the_score_has_its_sign():
    assert accuracy(scored([0.1, -2, 3, 0], [(1,), (0,), (0,), (1,)]), rated=False) == (1 + 1 + 0 + 0.5) / 4


def test_unequal_ratings_are_right_in_the_order_of_their_scores():
    ratings = scored([1, 2, 3, 3], [(0.0,), (1.0,), (0.5,), (0.5,)])  # the last two are not compared
    assert accuracy(ratings, rated=True) == 3 / 5
    assert math.isnan(accuracy(scored([1, 2], [(0.5,), (0.5,)]), rated=True))


def test_calibration_error_and_brier_score_of_four_predictions():
    probability = torch.tensor([0.72, 0.78, 0.1, 0.95]).double()
    outcome = torch.tensor([1.0, 0.0, 0.0, 1.0]).double()
    assert brier_score(probability, outcome) == pytest.approx((0.0784 + 0.6084 + 0.01 + 0.0025) / 4)
    assert calibration_error(probability, outcome) == pytest.approx((abs(1.5 - 1.0) + 0.1 + 0.05) / 4)
    assert calibration_error(torch.ones(1), torch.ones(1)) == 0.0  # 1.0 belongs to the last bin


def test_the_probability_of_a_pair_is_that_its_higher_score_is_right():
    gap = math.log(4)  # sigmoid is 0.8
    probability, outcome = probabilities(scored([gap, 0, 0, gap], [()] * 2))
    assert probability.tolist() == pytest.approx([0.8, 0.8]) and outcome.tolist() == [1.0, 0.0]


def test_accuracy_is_also_measured_per_named_source():
    losses, scores = torch.tensor([1.0, 2.0, 3.0]), scored([2, 1, 0, 3, 4, 1], [()] * 3)
    metrics = held_out_metrics(losses, scores, ["web", "web", ""], rated=False)
    assert metrics["held_out_accuracy/web"] == 0.5 and metrics["held_out_loss"] == 2.0
    assert [name for name in metrics if "/" in name] == ["held_out_accuracy/web"]


def test_the_scores_of_some_responses_are_those_of_their_steps():
    chosen = select(scored([1, 2, 3, 4], [(0, 1), (1,), (0,)]), [0, 2])
    assert chosen == chosen and not hasattr(chosen, "chosen")
    assert chosen.scores.tolist() == [1, 2, 4] and chosen.owners.tolist() == [0, 0, 1]


def test_the_gradient_of_the_linear_loss_is_the_negative_advantage_on_trained_tokens():
    values = torch.tensor([1.0, math.nan, 3.0], requires_grad=True)
    zeros = torch.zeros(3)
    tokens = Tokens(
        logprobs=zeros, old_logprobs=zeros, sampler_logprobs=zeros, advantages=torch.tensor([0.5, 7.0, -2.0]),
        trained=torch.tensor([True, False, True]), row=zeros.long(), trajectory=zeros.long(), turn=zeros.long(),
        values=values,
    )  # fmt: skip
    (gradient,) = torch.autograd.grad(linear_value(tokens)[0][tokens.trained].sum(), values)
    assert gradient.tolist() == [-0.5, 0.0, 2.0]
