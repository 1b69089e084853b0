"""Preference losses: `f(pairs, **kwargs) -> loss per pair`; a loss without pairs gets `Labelled` responses instead.

They read one sum of logprobs per response, so they need no engine. `response_sums` makes these sums, and
`with_preference_gradient` turns the gradient of a loss to them into a batch that any trainer can train on.

In every formula w is the chosen response, l the rejected one, n a number of tokens, and h of a response its logprob
under the policy minus that under the reference, summed over its tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch.nn.functional import logsigmoid

from roll.algorithms.recipe import Objective
from roll.algorithms.segments import rows_of, sum_by
from roll.algorithms.user_code import call, check_shape, location_of
from roll.config.preferences import REFERENCE_FREE
from roll.errors import ConfigError
from roll.registry import PREFERENCE_LOSSES
from roll.types import Batch, Spec

OBJECTIVE = Objective(loss=Spec("policy_gradient"))
"""The linear loss that an engine evaluates on a batch of `with_preference_gradient`."""
_LARGEST_MEAN = -1e-9
"""A larger mean logprob counts as this one in odds: the odds of a certain response are infinite."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Responses:
    """Sums over the tokens of responses, one entry per response."""

    logprobs: torch.Tensor
    """[responses] fp64, under the policy, with gradient"""
    ref_logprobs: torch.Tensor
    """[responses] fp64, under the reference; 0 for a loss without one"""
    num_tokens: torch.Tensor
    """[responses] fp64"""

    @property
    def log_ratios(self) -> torch.Tensor:
        """Sums of policy minus reference logprobs: h of the formulas."""
        return self.logprobs - self.ref_logprobs

    @property
    def mean_logprobs(self) -> torch.Tensor:
        """Policy logprobs per token."""
        return self.logprobs / self.num_tokens

    def select(self, index: slice | torch.Tensor) -> Responses:
        """Some of the responses."""
        return Responses(
            logprobs=self.logprobs[index], ref_logprobs=self.ref_logprobs[index], num_tokens=self.num_tokens[index]
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pairs:
    """Input of a paired loss: entry i of both sides answers the same prompt."""

    chosen: Responses
    rejected: Responses


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Labelled:
    """Input of an unpaired loss."""

    responses: Responses
    desirable: torch.Tensor
    """[responses] bool"""
    baseline: torch.Tensor
    """[] fp64: mean h of responses to other prompts, at least 0; an estimate of the KL divergence, without gradient"""


Compared: TypeAlias = Pairs | Labelled
"""Input of a preference loss."""


def dpo(pairs: Pairs, *, beta: float = 0.1, per_token: bool = False) -> torch.Tensor:
    """DPO: -log sigmoid(beta (h_w - h_l)).

    `per_token` divides each h by the number of tokens of its response, so that long ones do not count more.
    """
    return -logsigmoid(beta * _margins(pairs, per_token))


def cdpo(pairs: Pairs, *, beta: float = 0.1, noise: float = 0.1, per_token: bool = False) -> torch.Tensor:
    """cDPO: -(1 - noise) log sigmoid(beta (h_w - h_l)) - noise log sigmoid(-beta (h_w - h_l)).

    `noise` is the probability that a label is wrong; the loss is smallest at a finite margin.
    """
    if not 0 <= noise < 0.5:
        raise ConfigError(f"cdpo: noise must be at least 0 and below 0.5 (got {noise}); lower it")
    logits = beta * _margins(pairs, per_token)
    return -(1 - noise) * logsigmoid(logits) - noise * logsigmoid(-logits)


def ipo(pairs: Pairs, *, beta: float = 0.1, per_token: bool = False) -> torch.Tensor:
    """IPO: (h_w - h_l - 1 / (2 beta))^2; with `per_token` each h is divided by the length of its response."""
    return (_margins(pairs, per_token) - 1 / (2 * beta)).square()


def apo_zero(pairs: Pairs, *, beta: float = 0.1, per_token: bool = False) -> torch.Tensor:
    """APO-zero: 1 - sigmoid(beta h_w) + sigmoid(beta h_l).

    For chosen responses that are better than those of the model: they become likelier, rejected ones less likely.
    """
    chosen, rejected = _sides(pairs, per_token)
    return torch.sigmoid(-beta * chosen) + torch.sigmoid(beta * rejected)


def apo_down(pairs: Pairs, *, beta: float = 0.1, per_token: bool = False) -> torch.Tensor:
    """APO-down: sigmoid(beta h_w) + 1 - sigmoid(beta (h_w - h_l)).

    For chosen responses that are worse than those of the model: both become less likely, rejected ones more so.
    """
    chosen, rejected = _sides(pairs, per_token)
    return torch.sigmoid(beta * chosen) + torch.sigmoid(-beta * (chosen - rejected))


def orpo(pairs: Pairs, *, beta: float = 0.1) -> torch.Tensor:
    """ORPO: -m_w - beta log sigmoid(log odds(m_w) - log odds(m_l)), m = logprob / n, odds = e^m / (1 - e^m).

    The first term is supervised learning on the chosen response. There is no reference.
    """
    chosen, rejected = pairs.chosen.mean_logprobs, pairs.rejected.mean_logprobs
    return -chosen - beta * logsigmoid(_log_odds(chosen) - _log_odds(rejected))


def simpo(pairs: Pairs, *, beta: float = 2.0, margin: float = 1.0) -> torch.Tensor:
    """SimPO: -log sigmoid(beta (m_w - m_l) - margin), m = logprob / n. There is no reference."""
    return -logsigmoid(beta * (pairs.chosen.mean_logprobs - pairs.rejected.mean_logprobs) - margin)


def kto(
    labelled: Labelled, *, beta: float = 0.1, desirable_weight: float = 1.0, undesirable_weight: float = 1.0
) -> torch.Tensor:
    """KTO: 1 - sigmoid(beta (h - z)) if desirable, else 1 - sigmoid(beta (z - h)); z = max(0, mean h of other prompts).

    Each case has its weight. The baseline z is a constant: the mean log-ratio of responses to prompts that they do not
    belong to.
    """
    distance = labelled.responses.log_ratios - labelled.baseline
    good, bad = torch.sigmoid(-beta * distance), torch.sigmoid(beta * distance)
    return torch.where(labelled.desirable, desirable_weight * good, undesirable_weight * bad)


def response_sums(batch: Batch, row: torch.Tensor) -> torch.Tensor:
    """[rows] fp64: sum of a per-token row over the trained tokens of each sequence, which are its response."""
    return sum_by(rows_of(batch), torch.where(batch.trained, row, 0.0).double(), len(batch.lengths))


def compare(responses: Responses, desirable: torch.Tensor | None, baseline: torch.Tensor | None = None) -> Compared:
    """The input of a loss: labelled responses, or without labels pairs, whose sides alternate, chosen first."""
    if desirable is None:
        return Pairs(chosen=responses.select(slice(0, None, 2)), rejected=responses.select(slice(1, None, 2)))
    zero = torch.zeros((), dtype=torch.float64)
    return Labelled(
        responses=responses, desirable=desirable, baseline=zero if baseline is None else baseline.detach().clamp(min=0)
    )


def losses_of(loss: Spec, compared: Compared) -> torch.Tensor:
    """One value per pair, or per response of a loss without pairs."""
    like = compared.desirable if isinstance(compared, Labelled) else compared.chosen.num_tokens
    result = call(PREFERENCE_LOSSES, loss, compared)
    per = "response" if isinstance(compared, Labelled) else "pair"
    return check_shape(PREFERENCE_LOSSES, loss, result, like, per=per)


def with_preference_gradient(
    batch: Batch, loss: Spec, responses: Responses, *, desirable: torch.Tensor | None, baseline: torch.Tensor | None
) -> tuple[Batch, torch.Tensor]:
    """The batch with advantages that give `OBJECTIVE` the gradient of the mean loss, and the losses.

    A loss couples sequences that may be in different micro-batches, but at fixed weights its gradient is linear in the
    gradients of their logprobs: the negative slope of the mean loss to a response's logprob is the advantage of each of
    its tokens. The result is exact for one update, and independent of how the batch is split.
    """
    sums = responses.logprobs.detach().requires_grad_()
    losses = losses_of(loss, compare(replace(responses, logprobs=sums), desirable, baseline))
    if not losses.requires_grad:
        raise ConfigError(
            f"preference loss {loss.name!r}: its result has no gradient; compute it from the logprobs of the "
            f"responses, without detach{location_of(PREFERENCE_LOSSES, loss)}"
        )
    (slopes,) = torch.autograd.grad(losses.mean(), sums)
    advantages = torch.where(batch.trained, -slopes[rows_of(batch)], 0.0).float()
    return replace(batch, advantages=advantages, weights=batch.trained.float()), losses.detach()


def preference_metrics(loss: Spec, losses: torch.Tensor, compared: Compared) -> dict[str, float]:
    """Mean loss, accuracy, margin, and the mean log-ratio of each side, in nats.

    A pair is right if its chosen response has the larger log-ratio, or without a reference the larger logprob per
    token; a tie counts half. A labelled response is right if its log-ratio is on its side of the baseline.
    """
    if isinstance(compared, Labelled):
        scores, good = compared.responses.log_ratios.detach(), compared.desirable
        chosen, rejected = scores[good], scores[~good]
        gaps = torch.where(good, scores - compared.baseline, compared.baseline - scores)
    else:
        free = loss.name in REFERENCE_FREE
        chosen, rejected = (
            (side.mean_logprobs if free else side.log_ratios).detach() for side in (compared.chosen, compared.rejected)
        )
        gaps = chosen - rejected
    sides = {"chosen": chosen, "rejected": rejected}
    means = {f"preference/{name}": float(side.mean()) for name, side in sides.items() if len(side)}
    both = len(means) == len(sides)
    margin = {"preference/margin": means["preference/chosen"] - means["preference/rejected"]} if both else {}
    return {
        "preference/loss": float(losses.mean()),
        "preference/accuracy": float((gaps.sign() + 1).mean() / 2),
        **means,
        **margin,
    }


def _sides(pairs: Pairs, per_token: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """h of both sides, per token on request."""
    chosen, rejected = pairs.chosen, pairs.rejected
    if per_token:
        return chosen.log_ratios / chosen.num_tokens, rejected.log_ratios / rejected.num_tokens
    return chosen.log_ratios, rejected.log_ratios


def _margins(pairs: Pairs, per_token: bool) -> torch.Tensor:
    chosen, rejected = _sides(pairs, per_token)
    return chosen - rejected


def _log_odds(mean_logprobs: torch.Tensor) -> torch.Tensor:
    bounded = mean_logprobs.clamp(max=_LARGEST_MEAN)
    return bounded - torch.log(-torch.expm1(bounded))
