"""Corrections for a sampler that was not quite the policy: `f(tokens, **kwargs) -> [tokens]` factors of the loss.

All start from the behaviour ratio: a token's probability by the trainer before the step's first update over that by
which it was sampled. `level` says over what it is taken: `token`; `turn` and `sequence`, the product over the trained
tokens of a turn or a sequence; `geometric`, the geometric mean over the trained tokens of a sequence. Tokens that are
not trained on are never read, and no factor is part of a gradient. What a factor of 0 drops is no longer trained on, so
it leaves the denominators too: `assign_credit` sees to that, which is why such corrections need recomputed logprobs.
"""

from __future__ import annotations

import torch

from roll.algorithms.segments import sum_by
from roll.errors import UnknownName
from roll.types import Tokens

LEVELS = ("token", "turn", "sequence", "geometric")


def truncate(tokens: Tokens, *, level: str = "token", cap: float = 2.0) -> torch.Tensor:
    """The ratio, at most `cap`."""
    return _ratio(tokens, level).clamp(max=cap)


def mask(tokens: Tokens, *, level: str = "token", low: float = 0.5, high: float = 2.0) -> torch.Tensor:
    """IcePop: the ratio where it lies between `low` and `high`, elsewhere 0."""
    ratio = _ratio(tokens, level)
    return torch.where((ratio >= low) & (ratio <= high), ratio, 0.0)


def reject(tokens: Tokens, *, level: str = "sequence", low: float = 0.5, high: float = 2.0) -> torch.Tensor:
    """1 where the ratio lies between `low` and `high`, elsewhere 0: drops whole sequences or turns."""
    ratio = _ratio(tokens, level)
    return ((ratio >= low) & (ratio <= high)).to(ratio.dtype)


def _ratio(tokens: Tokens, level: str) -> torch.Tensor:
    """[tokens]: the behaviour ratio of what each token belongs to; 1 where none of it is trained on."""
    if level not in LEVELS:
        raise UnknownName("level of correction", level, LEVELS)
    log_ratio = torch.where(tokens.trained, tokens.old_logprobs - tokens.sampler_logprobs, 0.0).detach()
    if level == "turn":
        return _sum_over(tokens.turn, log_ratio).exp().to(log_ratio.dtype)
    if level == "sequence":
        return _sum_over(tokens.row, log_ratio).exp().to(log_ratio.dtype)
    if level == "geometric":
        count = _sum_over(tokens.row, tokens.trained).clamp(min=1)
        return (_sum_over(tokens.row, log_ratio) / count).exp().to(log_ratio.dtype)
    return log_ratio.exp()


def _sum_over(index: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """[tokens] fp64: the sum of `values` over all tokens with the same index."""
    size = int(index.max()) + 1 if len(index) else 0
    return sum_by(index, values.double(), size).index_select(0, index)
