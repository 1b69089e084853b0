"""Losses: `f(tokens, **kwargs) -> (loss a token, metrics a token)`.

A loss returns a row, one number a token, and so do its metrics. It neither masks nor divides: the engine multiplies
with `batch.weights`, which carry the mask and the denominator of the whole global batch, and sums. What a loss says
about a token that is not trained on is ignored; what it reads there may be anything, even NaN, and is replaced before
it enters a formula, because a gradient of zero times NaN would still be NaN.

In every formula `ratio` is the probability of a token now over that before the step's first update.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

import torch

from roll.algorithms.segments import sum_by
from roll.errors import ConfigError
from roll.types import Tokens

Loss: TypeAlias = tuple[torch.Tensor, dict[str, torch.Tensor]]
"""The loss of each token, and rows to average over the trained tokens and log by name."""


def clipped(tokens: Tokens, *, clip_low: float = 0.2, clip_high: float = 0.2, dual_clip: float | None = None) -> Loss:
    """PPO's clipped surrogate. DAPO is `clip_high > clip_low`.

    With `dual_clip`, a number above 1, a token with a negative advantage loses at most that many times its advantage,
    however likely it has become. `clip_fraction` is the part of tokens whose gradient a clip removes.
    """
    ratio = _log_ratio(tokens).exp()
    surrogate, removed = _surrogate(ratio, tokens.advantages, clip_low, clip_high)
    if dual_clip is not None:
        if dual_clip <= 1:
            raise ConfigError(f"clipped: dual_clip must be above 1 (got {dual_clip}); raise it or leave it out")
        bound = torch.where(tokens.advantages < 0, dual_clip * tokens.advantages, -torch.inf)
        surrogate, removed = torch.maximum(surrogate, bound), removed | (surrogate < bound)
    return -surrogate, _clip_metrics(ratio, removed)


def policy_gradient(tokens: Tokens) -> Loss:
    """REINFORCE: the negated logprob times the advantage."""
    return _likelihood(tokens), {}


def sequence_clipped(tokens: Tokens, *, clip_low: float = 3e-4, clip_high: float = 4e-4) -> Loss:
    """GSPO: the clipped surrogate of the sequence's ratio, the geometric mean over its trained tokens.

    Every token of a sequence has the same ratio, and a gradient through all of the sequence's trained tokens.
    """
    ratio = _geometric_mean(_log_ratio(tokens), tokens)
    surrogate, removed = _surrogate(ratio, tokens.advantages, clip_low, clip_high)
    return -surrogate, _clip_metrics(ratio, removed)


def geometric_clipped(tokens: Tokens, *, clip_low: float = 0.4, clip_high: float = 0.4) -> Loss:
    """GMPO: the sequence's ratio is the geometric mean of token ratios that are clipped one by one, on a log scale.

    As in PPO only gains are bounded: above where the advantage is positive, below where it is negative; the log-ratio
    of a token without advantage enters the mean as it is. A clipped token has no gradient of its own, but its
    neighbours have.
    """
    log_ratio = _log_ratio(tokens)
    bounded = torch.where(tokens.advantages > 0, log_ratio.clamp(max=clip_high), log_ratio)
    bounded = torch.where(tokens.advantages < 0, log_ratio.clamp(min=-clip_low), bounded)
    ratio = _geometric_mean(bounded, tokens)
    return -ratio * tokens.advantages, _clip_metrics(ratio, bounded != log_ratio)


def cispo(tokens: Tokens, *, clip_low: float = 1.0, clip_high: float = 0.2) -> Loss:
    """CISPO: the policy gradient weighted by the clipped ratio, so that no token's gradient is ever removed.

    The ratio is a constant to the gradient. `clip_low` of 1 sets no lower bound.
    """
    ratio = _log_ratio(tokens).detach().exp()
    bounded = ratio.clamp(1 - clip_low, 1 + clip_high)
    return bounded * _likelihood(tokens), _clip_metrics(ratio, bounded != ratio)


def truncated_importance(tokens: Tokens, *, cap: float = 2.0) -> Loss:
    """TIS: the policy gradient weighted by the ratio, at most `cap`; the ratio is a constant to the gradient."""
    ratio = _log_ratio(tokens).detach().exp()
    return ratio.clamp(max=cap) * _likelihood(tokens), _clip_metrics(ratio, ratio > cap)


def topr(tokens: Tokens, *, positive: float = 1.0, negative: float = 1.0, low: float = 0.0, high: float = 1.0) -> Loss:
    """TOPR: the plain policy gradient where the advantage is not negative, elsewhere weighted by the tapered ratio.

    The ratio, kept within `low` and `high` and a constant to the gradient, is to the probability with which the token
    was *sampled*: this loss corrects for the behaviour policy itself. `positive` and `negative` weigh the two kinds.
    """
    ratio = _trained(tokens, tokens.logprobs - tokens.sampler_logprobs).detach().exp()
    bounded, bad = ratio.clamp(low, high), tokens.advantages < 0
    weight = torch.where(bad, negative * bounded, positive)
    return weight * _likelihood(tokens), _clip_metrics(ratio, bad & (bounded != ratio))


def raft(tokens: Tokens, *, clip_low: float = 0.2, clip_high: float = 0.2) -> Loss:
    """RAFT++: the clipped surrogate on tokens with a positive advantage; the others have no loss."""
    return clipped(replace(tokens, advantages=tokens.advantages.clamp(min=0)), clip_low=clip_low, clip_high=clip_high)


def kimi(tokens: Tokens, *, tau: float = 0.1) -> Loss:
    """Kimi k1.5: the policy gradient, and `tau` times half the squared log-ratio to hold the policy back."""
    log_ratio = _log_ratio(tokens)
    return _likelihood(tokens) + tau / 2 * log_ratio.square(), {"ratio": log_ratio.detach().exp()}


def sapo(tokens: Tokens, *, tau_positive: float = 1.0, tau_negative: float = 1.05) -> Loss:
    """SAPO: instead of a clip, a sigmoid of the ratio whose slope is 1 at ratio 1 and fades on both sides.

    `tau` is how fast it fades, for advantages above 0 and for the others.
    """
    ratio = _log_ratio(tokens).exp()
    tau = torch.where(tokens.advantages > 0, tau_positive, tau_negative)
    return -4 / tau * torch.sigmoid(tau * (ratio - 1)) * tokens.advantages, {"ratio": ratio.detach()}


def decoupled(tokens: Tokens, *, clip_low: float = 0.2, clip_high: float = 0.2, cap: float | None = None) -> Loss:
    """Decoupled PPO: the clipped surrogate, weighted by the behaviour ratio, at most `cap`.

    That is a token's probability before the step's first update over that by which it was sampled; a constant to the
    gradient.
    """
    behaviour = _trained(tokens, tokens.old_logprobs - tokens.sampler_logprobs).detach().exp()
    row, metrics = clipped(tokens, clip_low=clip_low, clip_high=clip_high)
    weight = behaviour if cap is None else behaviour.clamp(max=cap)
    return row * weight, {**metrics, "behaviour_ratio": behaviour}


def squared_value(tokens: Tokens, *, clip: float | None = None) -> Loss:
    """For a critic: half the squared distance of a token's value to its return.

    With `clip` the value is also held within that distance of the one before the step's first update, and the larger
    loss of the two counts. `value_error` is the distance itself.
    """
    assert tokens.values is not None and tokens.returns is not None, "a critic's tokens carry values and returns"
    values, returns = _trained(tokens, tokens.values), _trained(tokens, tokens.returns)
    error = values - returns
    row, metrics = error.square() / 2, {"value_error": error.detach().abs()}
    if clip is None:
        return row, metrics
    assert tokens.old_values is not None, "a critic's tokens carry the values before the first update"
    old = _trained(tokens, tokens.old_values)
    bounded = (values.clamp(old - clip, old + clip) - returns).square() / 2
    return torch.maximum(row, bounded), {**metrics, "clip_fraction": (bounded > row).to(row.dtype)}


def _trained(tokens: Tokens, row: torch.Tensor) -> torch.Tensor:
    """`row`, with 0 in place of whatever it holds on tokens that are not trained on."""
    return torch.where(tokens.trained, row, 0.0)


def _log_ratio(tokens: Tokens) -> torch.Tensor:
    return _trained(tokens, tokens.logprobs - tokens.old_logprobs)


def _likelihood(tokens: Tokens) -> torch.Tensor:
    return -tokens.advantages * _trained(tokens, tokens.logprobs)


def _surrogate(
    ratio: torch.Tensor, advantages: torch.Tensor, clip_low: float, clip_high: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The lesser of the free and the clipped gain, and where the clip removes the gradient."""
    free = ratio * advantages
    bounded = ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    return torch.minimum(free, bounded), bounded < free


def _clip_metrics(ratio: torch.Tensor, removed: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"ratio": ratio.detach(), "clip_fraction": removed.to(ratio.dtype)}


def _geometric_mean(log_ratio: torch.Tensor, tokens: Tokens) -> torch.Tensor:
    """[tokens]: of the ratios of the trained tokens of each token's sequence; 1 on tokens that are not trained on.

    Those must stay apart on the way back too: a sequence's tokens share their gradients.
    """
    mean = _row_sum(log_ratio, tokens.row) / _row_sum(tokens.trained, tokens.row).clamp(min=1)
    return torch.where(tokens.trained, mean.exp().index_select(0, tokens.row).to(log_ratio.dtype), 1.0)


def _row_sum(values: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    """[rows] fp64: a sequence may be long, and its ratio must be right to the fifth digit."""
    size = int(row.max()) + 1 if len(row) else 0
    return sum_by(row, values.double(), size)
