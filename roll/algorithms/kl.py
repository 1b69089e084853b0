"""How far the policy is from the reference: estimators of KL from single tokens, and the coefficient that follows them.

`d` is the policy's logprob of a token less the reference's. On tokens the policy samples, each of the three averages to
the divergence or near it. In a reward any will do. In a loss their gradients differ: that of `k1` averages to nothing,
that of `k2` to the divergence's own, that of `k3` to the gradient of the divergence taken the other way round.
"""

from __future__ import annotations

import torch


def k1(d: torch.Tensor) -> torch.Tensor:
    """`d` itself: right on average, often negative, much noise."""
    return d


def k2(d: torch.Tensor) -> torch.Tensor:
    """`d^2 / 2`: never negative, a little off on average."""
    return d.square() / 2


def k3(d: torch.Tensor) -> torch.Tensor:
    """`exp(-d) + d - 1`: never negative, right on average."""
    return torch.expm1(-d) + d  # not exp(-d) - 1, whose digits cancel near the reference


def adapted(coefficient: float, kl: float, *, target: float, horizon: int, num_samples: int) -> float:
    """The next coefficient: larger when `kl` was above `target`, smaller when below, after `num_samples` trajectories.

    The relative error counts up to 20 %, and in full once `horizon` trajectories have been seen; a batch larger than
    that counts as one horizon, so that the coefficient never changes its sign.
    """
    error = min(max(kl / target - 1, -0.2), 0.2)
    return coefficient * (1 + error * min(num_samples / horizon, 1.0))
