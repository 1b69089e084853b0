"""Losses: `f(tokens, **kwargs) -> (loss a token, metrics a token)`.

A loss returns a row, one number a token, and so do its metrics. It neither masks nor divides: the engine multiplies
with `batch.weights`, which carry the mask and the denominator of the whole global batch, and sums. What a loss says
about a token that is not trained on is ignored.
"""

from __future__ import annotations

from typing import TypeAlias

import torch

from roll.types import Tokens

Loss: TypeAlias = tuple[torch.Tensor, dict[str, torch.Tensor]]
"""The loss of each token, and rows to average over the trained tokens and log by name."""


def clipped(tokens: Tokens, *, clip_low: float = 0.2, clip_high: float = 0.2) -> Loss:
    """PPO's clipped surrogate. DAPO is `clip_high > clip_low`.

    `clip_fraction` is the part of tokens whose gradient the clip removes.
    """
    ratio = (tokens.logprobs - tokens.old_logprobs).exp()
    free = ratio * tokens.advantages
    bounded = ratio.clamp(1 - clip_low, 1 + clip_high) * tokens.advantages
    metrics = {"ratio": ratio.detach(), "clip_fraction": (bounded < free).to(ratio.dtype)}
    return -torch.minimum(free, bounded), metrics


def policy_gradient(tokens: Tokens) -> Loss:
    """REINFORCE: the negated logprob times the advantage."""
    return -tokens.advantages * tokens.logprobs, {}
