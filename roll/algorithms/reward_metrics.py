"""Accuracy and calibration of a reward model's scores.

A probability is the sigmoid of a pair's difference in scores, or of a score with a label. Scores of ratings are none.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from roll.algorithms.reward_losses import Scored, ScoredPairs, ScoredResponses

NUM_BINS = 10
"""Bins of equal width by which calibration is measured."""


def select(scored: Scored, examples: Sequence[int]) -> Scored:
    """Some of the pairs or responses, in order; increasing indices."""
    index = torch.tensor(list(examples), dtype=torch.int64)
    if isinstance(scored, ScoredPairs):
        return ScoredPairs(chosen=scored.chosen[index], rejected=scored.rejected[index], margins=scored.margins[index])
    chosen = torch.isin(scored.owners, index)
    return ScoredResponses(
        scores=scored.scores[chosen],
        targets=scored.targets[chosen],
        owners=torch.searchsorted(index, scored.owners[chosen]),
        num_responses=len(index),
    )


def accuracy(scored: Scored, *, rated: bool) -> float:
    """Fraction of pairs, of labels, or with `rated` of any two responses with different targets, that are right.

    A pair is right if the better response has the larger score, a label if the score has its sign; ties count half.
    NaN if there is nothing to compare.
    """
    if isinstance(scored, ScoredPairs):
        signs = (scored.chosen - scored.rejected).sign()
    elif rated:
        signs = _concordance(scored.scores, scored.targets)
    else:
        signs = scored.scores.sign() * (scored.targets - 0.5).sign()
    return float((signs.detach() + 1).mean() / 2)


def probabilities(scored: Scored) -> tuple[torch.Tensor, torch.Tensor]:
    """Predicted probabilities and outcomes from 0 to 1; of a pair, that its higher score belongs to the chosen one."""
    if isinstance(scored, ScoredPairs):
        gaps = (scored.chosen - scored.rejected).detach()
        return gaps.abs().sigmoid(), (gaps.sign() + 1) / 2
    return scored.scores.detach().sigmoid(), scored.targets


def brier_score(probability: torch.Tensor, outcome: torch.Tensor) -> float:
    """Mean squared difference of probabilities and outcomes."""
    return float((probability - outcome).square().mean())


def calibration_error(probability: torch.Tensor, outcome: torch.Tensor) -> float:
    """Expected calibration error: mean over bins of |mean probability - mean outcome|, weighted by their sizes."""
    bins = (probability * NUM_BINS).long().clamp(0, NUM_BINS - 1)
    gaps = torch.zeros(NUM_BINS, dtype=torch.float64).index_add_(0, bins, (probability - outcome).double())
    return float(gaps.abs().sum() / len(probability))


def reward_metrics(losses: torch.Tensor, scored: Scored, *, rated: bool) -> dict[str, float]:
    """Mean loss, accuracy, and the mean score; of pairs also the mean difference of scores."""
    pairs = isinstance(scored, ScoredPairs)
    scores = torch.cat([scored.chosen, scored.rejected]) if pairs else scored.scores
    margin = {"margin": float((scored.chosen - scored.rejected).mean())} if pairs else {}
    return {
        "loss": float(losses.mean()),
        "accuracy": accuracy(scored, rated=rated),
        "score": float(scores.mean()),
        **margin,
    }


def held_out_metrics(losses: torch.Tensor, scored: Scored, sources: Sequence[str], *, rated: bool) -> dict[str, float]:
    """Loss, accuracy in all and per source, and how well probabilities are calibrated; of ratings the mean error."""
    metrics = {"held_out_loss": float(losses.mean()), "held_out_accuracy": accuracy(scored, rated=rated)}
    for name in sorted({each for each in sources if each}):
        part = select(scored, [index for index, source in enumerate(sources) if source == name])
        metrics[f"held_out_accuracy/{name}"] = accuracy(part, rated=rated)
    if rated and isinstance(scored, ScoredResponses):
        return metrics | {"held_out_error": float((scored.scores - scored.targets).abs().mean())}
    predicted = probabilities(scored)
    return metrics | {
        "held_out_brier": brier_score(*predicted),
        "held_out_calibration_error": calibration_error(*predicted),
    }


def _concordance(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Signs of the differences of scores, from the lower target to the higher, of all unequal targets."""
    signs = [
        ((scores[index + 1 :] - scores[index]).sign() * order)[order != 0]
        for index in range(len(scores) - 1)
        for order in [(targets[index + 1 :] - targets[index]).sign()]
    ]
    return torch.cat([scores.new_zeros(0), *signs])
