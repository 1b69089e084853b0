"""Losses of reward models: `f(scored, **kwargs) -> loss per example`, on scores that were read at the end of responses.

They read one score per response, or per step of one, so they need no engine. `with_reward_gradient` turns the gradient
of a loss to the scores into a batch that any critic can train on.

In every formula s is a score, w the chosen response, l the rejected one, m a pair's margin, and y a target from 0 to 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch.nn.functional import logsigmoid

from roll.algorithms.losses import Loss
from roll.algorithms.recipe import Objective
from roll.algorithms.segments import sum_by
from roll.algorithms.user_code import call, check_shape, location_of
from roll.errors import ConfigError
from roll.registry import REWARD_LOSSES
from roll.types import Batch, Spec, Tokens

OBJECTIVE = Objective(loss=Spec("roll.algorithms.reward_losses:linear_value"))
"""The linear loss that an engine evaluates on a batch of `with_reward_gradient`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScoredPairs:
    """Input of a loss of pairs: entry i of both sides answers the same prompt."""

    chosen: torch.Tensor
    """[pairs] fp64 scores, with gradient"""
    rejected: torch.Tensor
    margins: torch.Tensor
    """[pairs] fp64, 0 where the data has none"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScoredResponses:
    """Input of a loss of single responses, or of their steps."""

    scores: torch.Tensor
    """[scores] fp64, with gradient"""
    targets: torch.Tensor
    """[scores] fp64, from 0 to 1"""
    owners: torch.Tensor
    """[scores] int64: response of each score; without steps, every response has one"""
    num_responses: int


Scored: TypeAlias = ScoredPairs | ScoredResponses
"""Input of a loss of reward models."""


def bradley_terry(pairs: ScoredPairs, *, margin_scale: float = 1.0, centring: float = 0.0) -> torch.Tensor:
    """Bradley-Terry: -log sigmoid(s_w - s_l - margin_scale m) + centring (s_w + s_l)^2.

    `centring` keeps scores near 0, which the first term leaves open.
    """
    gaps = pairs.chosen - pairs.rejected - margin_scale * pairs.margins
    return -logsigmoid(gaps) + centring * (pairs.chosen + pairs.rejected).square()


def regression(responses: ScoredResponses) -> torch.Tensor:
    """Squared error: (s - y)^2, y = 0 for the lowest rating and 1 for the highest."""
    return (responses.scores - responses.targets).square()


def classification(responses: ScoredResponses, *, positive_weight: float = 1.0) -> torch.Tensor:
    """Cross-entropy: -positive_weight y log sigmoid(s) - (1 - y) log sigmoid(-s).

    Sigmoid of the score is the probability of a good response.
    """
    return _cross_entropy(responses, positive_weight)


def process(responses: ScoredResponses, *, positive_weight: float = 1.0) -> torch.Tensor:
    """Mean over the steps of a response: -positive_weight y log sigmoid(s) - (1 - y) log sigmoid(-s).

    Sigmoid of the score after a step is the probability that the step is right.
    """
    owners, size = responses.owners, responses.num_responses
    row = _cross_entropy(responses, positive_weight)
    return sum_by(owners, row, size) / sum_by(owners, torch.ones_like(row), size)


def linear_value(tokens: Tokens) -> Loss:
    """-A V, whose gradient to the values is that of any loss with these slopes."""
    assert tokens.values is not None, "a reward model's tokens carry values"
    return -tokens.advantages * torch.where(tokens.trained, tokens.values, 0.0), {}


def scored_examples(scores: torch.Tensor, targets: Sequence[Sequence[float]], margins: Sequence[float]) -> Scored:
    """The input of a loss from scores in reading order: pairs, chosen first, if examples have no targets."""
    if not any(targets):
        own = torch.tensor(margins, dtype=torch.float64)
        return ScoredPairs(chosen=scores[0::2], rejected=scores[1::2], margins=own)
    counts = torch.tensor([len(each) for each in targets])
    return ScoredResponses(
        scores=scores,
        targets=torch.tensor([target for each in targets for target in each], dtype=torch.float64),
        owners=torch.repeat_interleave(torch.arange(len(targets)), counts),
        num_responses=len(targets),
    )


def reward_losses(loss: Spec, scored: Scored) -> torch.Tensor:
    """One value per pair, or per response."""
    pairs = isinstance(scored, ScoredPairs)
    like = scored.margins if pairs else scored.scores.new_zeros(scored.num_responses)
    result = call(REWARD_LOSSES, loss, scored)
    return check_shape(REWARD_LOSSES, loss, result, like, per="pair" if pairs else "response")


def with_reward_gradient(batch: Batch, read: torch.Tensor, loss: Spec, scored: Scored) -> tuple[Batch, torch.Tensor]:
    """The batch with advantages that give `OBJECTIVE` the gradient of the mean loss, and the losses.

    `read` marks the entries at which the scores were read. At fixed weights the gradient of a loss is linear in the
    gradients of its scores: their negative slopes are the advantages. The result is exact for one update, and
    independent of how the batch is split.
    """
    moving = _with_gradient(scored)
    losses = reward_losses(loss, moving)
    if not losses.requires_grad:
        raise ConfigError(
            f"reward loss {loss.name!r}: its result has no gradient; compute it from the scores, without detach"
            f"{location_of(REWARD_LOSSES, loss)}"
        )
    advantages = torch.zeros(batch.num_tokens)
    advantages[read] = -_slopes(losses.mean(), moving).float()
    return replace(batch, advantages=advantages, weights=read.float()), losses.detach()


def _with_gradient(scored: Scored) -> Scored:
    if isinstance(scored, ScoredResponses):
        return replace(scored, scores=scored.scores.detach().requires_grad_())
    sides = (side.detach().requires_grad_() for side in (scored.chosen, scored.rejected))
    return replace(scored, **dict(zip(("chosen", "rejected"), sides, strict=True)))


def _slopes(loss: torch.Tensor, scored: Scored) -> torch.Tensor:
    """[scores] gradient of the loss to the scores, in reading order."""
    if isinstance(scored, ScoredResponses):
        return torch.autograd.grad(loss, scored.scores)[0]
    sides = torch.autograd.grad(loss, (scored.chosen, scored.rejected), materialize_grads=True)
    return torch.stack(sides, 1).flatten()


def _cross_entropy(responses: ScoredResponses, positive_weight: float) -> torch.Tensor:
    scores, targets = responses.scores, responses.targets
    return -positive_weight * targets * logsigmoid(scores) - (1 - targets) * logsigmoid(-scores)
