"""Losses: `f(tokens, **kwargs) -> (loss per token, metrics per token)`.

A loss returns one value per token, and so do its metrics. It neither masks nor divides: the engine multiplies with
`batch.weights`, which combine the mask with the denominator of the whole global batch, and sums. The loss of an
untrained token is ignored. Inputs there may be anything, even NaN, and are replaced before they enter a formula: a
gradient of zero times NaN would still be NaN.

In every formula A is the advantage and r, the ratio, is a token's probability now divided by its probability before the
step's first update. `roll explain` prints the first paragraph of each docstring.
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
_MAX_LOG_RATIO = 40.0
"""Larger log-ratios count as this one, without a gradient: two such ratios and a square still fit single precision."""


def clipped(tokens: Tokens, *, clip_low: float = 0.2, clip_high: float = 0.2, dual_clip: float | None = None) -> Loss:
    """PPO's clipped surrogate: -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A). DAPO is `clip_high > clip_low`.

    With `dual_clip` above 1, the loss of a token with a negative advantage is at most that many times its advantage,
    however likely the token has become. `clip_fraction` is the share of tokens whose gradient a clip removes.
    """
    ratio = _exp(_log_ratio(tokens))
    surrogate, removed = _surrogate(ratio, tokens.advantages, clip_low, clip_high)
    if dual_clip is not None:
        if dual_clip <= 1:
            raise ConfigError(f"clipped: dual_clip must be above 1 (got {dual_clip}); raise it or leave it out")
        bound = torch.where(tokens.advantages < 0, dual_clip * tokens.advantages, -torch.inf)
        surrogate, removed = torch.maximum(surrogate, bound), removed | (surrogate < bound)
    return -surrogate, _clip_metrics(ratio, removed)


def policy_gradient(tokens: Tokens) -> Loss:
    """REINFORCE: -A logprob."""
    return _likelihood(tokens), {}


def sequence_clipped(tokens: Tokens, *, clip_low: float = 3e-4, clip_high: float = 4e-4) -> Loss:
    """GSPO: -min(s A, clip(s, 1 - clip_low, 1 + clip_high) A), s = geometric mean of r over the sequence.

    All tokens of a sequence share one ratio, whose gradient flows through all its trained tokens.
    """
    ratio = _geometric_mean(_log_ratio(tokens), tokens)
    surrogate, removed = _surrogate(ratio, tokens.advantages, clip_low, clip_high)
    return -surrogate, _clip_metrics(ratio, removed)


def geometric_clipped(tokens: Tokens, *, clip_low: float = 0.4, clip_high: float = 0.4) -> Loss:
    """GMPO: -s A, s = exp(mean of log r over the sequence), log r <= clip_high if A > 0, log r >= -clip_low if A < 0.

    As in PPO, only gains are bounded: above for positive advantages, below for negative ones; the log-ratio of a token
    without advantage enters the mean unclipped. A clipped token contributes no gradient, but the others of its sequence
    do.
    """
    log_ratio = _log_ratio(tokens)
    bounded = torch.where(tokens.advantages > 0, log_ratio.clamp(max=clip_high), log_ratio)
    bounded = torch.where(tokens.advantages < 0, log_ratio.clamp(min=-clip_low), bounded)
    ratio = _geometric_mean(bounded, tokens)
    return -ratio * tokens.advantages, _clip_metrics(ratio, bounded != log_ratio)


def cispo(tokens: Tokens, *, clip_low: float = 1.0, clip_high: float = 0.2) -> Loss:
    """CISPO: -clip(r, 1 - clip_low, 1 + clip_high) A logprob, with r as a constant.

    The ratio carries no gradient, so clipping never removes a token's gradient. `clip_low` of 1 sets no lower bound.
    """
    ratio = _log_ratio(tokens).detach().exp()
    bounded = ratio.clamp(1 - clip_low, 1 + clip_high)
    return bounded * _likelihood(tokens), _clip_metrics(ratio, bounded != ratio)


def truncated_importance(tokens: Tokens, *, cap: float = 2.0) -> Loss:
    """TIS: -min(r, cap) A logprob, with r as a constant."""
    ratio = _log_ratio(tokens).detach().exp()
    return ratio.clamp(max=cap) * _likelihood(tokens), _clip_metrics(ratio, ratio > cap)


def topr(tokens: Tokens, *, positive: float = 1.0, negative: float = 1.0, low: float = 0.0, high: float = 1.0) -> Loss:
    """TOPR: -positive A logprob if A >= 0, else -negative clip(q, low, high) A logprob, q = p / sampler p.

    The ratio q is relative to the probability that *sampled* the token, so this loss corrects for the behaviour policy.
    It is clipped to `low` and `high` and carries no gradient. `positive` and `negative` scale the two cases.
    """
    ratio = _zero_untrained(tokens, tokens.logprobs - tokens.sampler_logprobs).detach().exp()
    bounded, bad = ratio.clamp(low, high), tokens.advantages < 0
    weight = torch.where(bad, negative * bounded, positive)
    return weight * _likelihood(tokens), _clip_metrics(ratio, bad & (bounded != ratio))


def raft(tokens: Tokens, *, clip_low: float = 0.2, clip_high: float = 0.2) -> Loss:
    """RAFT++: -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) if A > 0, else 0."""
    return clipped(replace(tokens, advantages=tokens.advantages.clamp(min=0)), clip_low=clip_low, clip_high=clip_high)


def kimi(tokens: Tokens, *, tau: float = 0.1) -> Loss:
    """Kimi k1.5: -A logprob + tau / 2 (log r)^2."""
    log_ratio = _log_ratio(tokens)
    return _likelihood(tokens) + tau / 2 * log_ratio.square(), {"ratio": log_ratio.detach().exp()}


def sapo(tokens: Tokens, *, tau_positive: float = 1.0, tau_negative: float = 1.05) -> Loss:
    """SAPO: -4 / tau sigmoid(tau (r - 1)) A, tau = tau_positive if A > 0, else tau_negative.

    In place of the clip, a sigmoid has slope 1 at r = 1 and fades on both sides. `tau_positive` and `tau_negative` set
    how fast it fades, for advantages above 0 and for all others.
    """
    ratio = _exp(_log_ratio(tokens))
    tau = torch.where(tokens.advantages > 0, tau_positive, tau_negative)
    return -4 / tau * torch.sigmoid(tau * (ratio - 1)) * tokens.advantages, {"ratio": ratio.detach()}


def decoupled(tokens: Tokens, *, clip_low: float = 0.2, clip_high: float = 0.2, cap: float | None = None) -> Loss:
    """Decoupled PPO: -min(w, cap) min(r A, clip(r, 1 - clip_low, 1 + clip_high) A), w = exp(old - sampler logprob).

    The behaviour ratio w is a token's probability before the step's first update divided by the one with which it was
    sampled; it carries no gradient.
    """
    behaviour = _exp(_zero_untrained(tokens, tokens.old_logprobs - tokens.sampler_logprobs).detach())
    row, metrics = clipped(tokens, clip_low=clip_low, clip_high=clip_high)
    weight = behaviour if cap is None else behaviour.clamp(max=cap)
    return row * weight, {**metrics, "behaviour_ratio": behaviour}


def squared_value(tokens: Tokens, *, clip: float | None = None) -> Loss:
    """Critic loss: (V - return)^2 / 2; with `clip` the larger of that and the same with V clipped around the old V.

    With `clip` the value is also clipped to that distance from the one before the step's first update, and the larger
    of both losses counts. `value_error` is the absolute difference.
    """
    assert tokens.values is not None and tokens.returns is not None, "a critic's tokens carry values and returns"
    values, returns = _zero_untrained(tokens, tokens.values), _zero_untrained(tokens, tokens.returns)
    error = values - returns
    row, metrics = error.square() / 2, {"value_error": error.detach().abs()}
    if clip is None:
        return row, metrics
    assert tokens.old_values is not None, "a critic's tokens carry the values before the first update"
    old = _zero_untrained(tokens, tokens.old_values)
    bounded = (values.clamp(old - clip, old + clip) - returns).square() / 2
    return torch.maximum(row, bounded), {**metrics, "clip_fraction": (bounded > row).to(row.dtype)}


def _zero_untrained(tokens: Tokens, row: torch.Tensor) -> torch.Tensor:
    """`row`, with 0 on untrained tokens."""
    return torch.where(tokens.trained, row, 0.0)


def _log_ratio(tokens: Tokens) -> torch.Tensor:
    return _zero_untrained(tokens, tokens.logprobs - tokens.old_logprobs)


def _exp(log_ratio: torch.Tensor) -> torch.Tensor:
    """The ratio, always finite: a clip multiplies the gradient of an infinite one with 0, which gives NaN."""
    return log_ratio.clamp(max=_MAX_LOG_RATIO).exp()


def _likelihood(tokens: Tokens) -> torch.Tensor:
    return -tokens.advantages * _zero_untrained(tokens, tokens.logprobs)


def _surrogate(
    ratio: torch.Tensor, advantages: torch.Tensor, clip_low: float, clip_high: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The smaller of the unclipped and the clipped surrogate, and where the clip removes the gradient."""
    free = ratio * advantages
    bounded = ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    return torch.minimum(free, bounded), bounded < free


def _clip_metrics(ratio: torch.Tensor, removed: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"ratio": ratio.detach(), "clip_fraction": removed.to(ratio.dtype)}


def _geometric_mean(log_ratio: torch.Tensor, tokens: Tokens) -> torch.Tensor:
    """[tokens]: geometric mean of the ratios over the trained tokens of each sequence; 1 on untrained tokens.

    The mask applies to the result too: otherwise untrained tokens would contribute to their sequence's gradient.
    """
    mean = _row_sum(log_ratio, tokens.row) / _row_sum(tokens.trained, tokens.row).clamp(min=1)
    return torch.where(tokens.trained, _exp(mean).index_select(0, tokens.row).to(log_ratio.dtype), 1.0)


def _row_sum(values: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    """[rows] fp64: a sequence may be long, and its ratio must be right to five digits."""
    size = int(row.max()) + 1 if len(row) else 0
    return sum_by(row, values.double(), size)
