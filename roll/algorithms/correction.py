"""Corrections for a sampler that differs from the policy: `f(tokens, **kwargs) -> [tokens]` factors of the loss.

All start from the behaviour ratio: a token's probability by the trainer before the step's first update, divided by the
probability with which it was sampled. `level` sets its scope: `token`; `turn` or `sequence`, the product over the
trained tokens of one; `geometric`, the geometric mean over the trained tokens of a sequence. Untrained tokens are never
read, and factors carry no gradient. Tokens with a factor of 0 are no longer trained, so they leave the denominators
too: `assign_credit` removes them, which is why such corrections need recomputed logprobs.
"""

from __future__ import annotations

import torch

from roll.algorithms.segments import sum_by
from roll.errors import UnknownName
from roll.types import Tokens

LEVELS = ("token", "turn", "sequence", "geometric")


def truncate(tokens: Tokens, *, level: str = "token", cap: float = 2.0) -> torch.Tensor:
    """min(rho, cap), rho = exp(old logprob - sampler logprob) at this level."""
    return _ratio(tokens, level).clamp(max=cap)


def mask(tokens: Tokens, *, level: str = "token", low: float = 0.5, high: float = 2.0) -> torch.Tensor:
    """IcePop: rho = exp(old logprob - sampler logprob) at this level if it is between `low` and `high`, else 0."""
    ratio = _ratio(tokens, level)
    return torch.where((ratio >= low) & (ratio <= high), ratio, 0.0)


def reject(tokens: Tokens, *, level: str = "sequence", low: float = 0.5, high: float = 2.0) -> torch.Tensor:
    """1 if rho = exp(old logprob - sampler logprob) at this level is between `low` and `high`, else 0."""
    ratio = _ratio(tokens, level)
    return ((ratio >= low) & (ratio <= high)).to(ratio.dtype)


def _ratio(tokens: Tokens, level: str) -> torch.Tensor:
    """[tokens]: the behaviour ratio at this level; 1 where none of its tokens is trained."""
    if level not in LEVELS:
        raise UnknownName("level of correction", level, LEVELS)
    log_ratio = torch.where(tokens.trained, tokens.old_logprobs - tokens.sampler_logprobs, 0.0).detach()
    if level == "token":
        return log_ratio.exp()
    total = _sum_over(tokens.turn if level == "turn" else tokens.row, log_ratio)
    if level == "geometric":
        total = total / _sum_over(tokens.row, tokens.trained).clamp(min=1)
    return total.exp().to(log_ratio.dtype)


def _sum_over(index: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """[tokens] fp64: sum of `values` over all tokens with the same index."""
    size = int(index.max()) + 1 if len(index) else 0
    return sum_by(index, values.double(), size).index_select(0, index)
