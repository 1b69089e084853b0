"""Bugs in the step of reward training, and in its losses."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.nn.functional import logsigmoid

from roll.algorithms.reward_losses import (
    ScoredPairs,
    ScoredResponses,
    with_reward_gradient,
)
from roll.conformance.reward_models import RewardCase, package_reward_step, scores_of
from roll.data.reward_batch import reward_batch
from roll.data.reward_rows import RewardExample
from roll.types import Spec

Outcome = tuple[torch.Tensor, torch.Tensor]
Reads = Callable[[RewardExample, int, int], Sequence[int]]
"""Tokens of a row that are read instead: gets the example, the row, and the token that should be."""


def swapped_pair(case: RewardCase, loss: Spec) -> Outcome:
    """The rejected response is taken for the chosen one."""
    batch, read = reward_batch(case.examples)
    pairs = scores_of(case, case.values[read])
    assert isinstance(pairs, ScoredPairs)
    swapped = replace(pairs, chosen=pairs.rejected, rejected=pairs.chosen)
    batch, losses = with_reward_gradient(batch, read, loss, swapped)
    assert batch.advantages is not None
    order = torch.arange(int(read.sum())).reshape(-1, 2).flip(1).flatten()
    return losses, _spread(read, -batch.advantages[read][order])


def prompt_token_scored(case: RewardCase, loss: Spec) -> Outcome:
    """The score is read after the prompt."""
    return _reading(case, loss, lambda example, row, end: [len(example.rows[row][0]) - 1])


def position_before_the_last(case: RewardCase, loss: Spec) -> Outcome:
    """The score is read one token early."""
    return _reading(case, loss, lambda example, row, end: [end - 1])


def mean_instead_of_last(case: RewardCase, loss: Spec) -> Outcome:
    """The score is the mean over the tokens of the response."""
    return _reading(
        case, loss, lambda example, row, end: range(len(example.rows[row][0]), sum(map(len, example.rows[row])))
    )


def unshifted_values(case: RewardCase, loss: Spec) -> Outcome:
    """The entry of the last token is read, whose value is that of the state before it."""
    read = reward_batch(case.examples)[1]
    shifted = torch.where(read, case.values.roll(1), case.values)
    return package_reward_step(replace(case, values=shifted), loss)


def sum_instead_of_mean(case: RewardCase, loss: Spec) -> Outcome:
    """The gradient is that of the sum over examples."""
    losses, gradient = package_reward_step(case, loss)
    return losses, gradient * len(losses)


def margin_of_the_wrong_sign(pairs: ScoredPairs, *, margin_scale: float = 1.0, centring: float = 0.0) -> torch.Tensor:
    """Bradley-Terry that asks for less than a right order."""
    centred = centring * (pairs.chosen + pairs.rejected).square()
    return -logsigmoid(pairs.chosen - pairs.rejected + margin_scale * pairs.margins) + centred


def last_step_alone(responses: ScoredResponses, *, positive_weight: float = 1.0) -> torch.Tensor:
    """A process reward model that learns from the last step of each response."""
    last = torch.zeros(responses.num_responses, dtype=torch.int64)
    last.scatter_reduce_(0, responses.owners, torch.arange(len(responses.owners)), "amax")
    scores, targets = responses.scores[last], responses.targets[last]
    return -positive_weight * targets * logsigmoid(scores) - (1 - targets) * logsigmoid(-scores)


def labels_inverted(responses: ScoredResponses, *, positive_weight: float = 1.0) -> torch.Tensor:
    """Good responses are taken for bad ones."""
    scores, targets = responses.scores, 1 - responses.targets
    return -positive_weight * targets * logsigmoid(scores) - (1 - targets) * logsigmoid(-scores)


def _reading(case: RewardCase, loss: Spec, reads: Reads) -> Outcome:
    """The step with scores that are means of the values after other tokens."""
    batch, read = reward_batch(case.examples)
    values = case.values.clone().requires_grad_()
    scores, start = list[torch.Tensor](), 0
    for example in case.examples:
        for row, ends in enumerate(example.ends):
            scores += [torch.stack([values[start + at + 1] for at in reads(example, row, end)]).mean() for end in ends]
            start += sum(map(len, example.rows[row])) + 1
    row_of_scores = _spread(read, torch.stack(scores))
    changed, losses = with_reward_gradient(batch, read, loss, scores_of(case, row_of_scores.detach()[read]))
    assert changed.advantages is not None
    total = (-changed.advantages * row_of_scores).sum()
    return losses, torch.autograd.grad(total, values)[0]


def _spread(read: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """[tokens]: the scores where they are read, 0 elsewhere."""
    return torch.zeros(len(read), dtype=scores.dtype).masked_scatter(read, scores)


STEPS: tuple[tuple[Any, str], ...] = (
    (swapped_pair, "bradley_terry"),
    (prompt_token_scored, "bradley_terry"),
    (prompt_token_scored, "regression"),
    (position_before_the_last, "classification"),
    (position_before_the_last, "process"),
    (mean_instead_of_last, "bradley_terry"),
    (mean_instead_of_last, "regression"),
    (unshifted_values, "process"),
    (sum_instead_of_mean, "bradley_terry"),
)
LOSSES: tuple[tuple[Any, str, dict[str, Any]], ...] = (
    (margin_of_the_wrong_sign, "bradley_terry", {}),
    (margin_of_the_wrong_sign, "bradley_terry", {"margin_scale": 0.5}),
    (last_step_alone, "process", {}),
    (labels_inverted, "classification", {}),
)
