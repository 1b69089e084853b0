"""Estimators of the KL divergence from the reference on single tokens, and the adaptive coefficient.

`d` is the policy's logprob of a token minus the reference's. On tokens that the policy samples, each estimator averages
to the divergence or close to it, so any of them works in a reward. In a loss their gradients differ. That of `k1`
averages to zero, that of `k2` to the gradient of the divergence, that of `k3` to that of the reverse divergence.
"""

from __future__ import annotations

import torch


def k1(d: torch.Tensor) -> torch.Tensor:
    """`d`: unbiased, high variance, often negative."""
    return d


def k2(d: torch.Tensor) -> torch.Tensor:
    """`d^2 / 2`: never negative, slightly biased."""
    return d.square() / 2


def k3(d: torch.Tensor) -> torch.Tensor:
    """`exp(-d) + d - 1`: never negative, unbiased."""
    return torch.expm1(-d) + d  # not exp(-d) - 1, which loses digits near the reference


def next_coefficient(coefficient: float, kl: float, *, target: float, horizon: int, num_samples: int) -> float:
    """The coefficient after `num_samples` trajectories: larger if `kl` was above `target`, smaller if below.

    The relative error is clipped to 20 % and applied in full per `horizon` trajectories. A batch larger than the
    horizon counts as one horizon, so the coefficient never changes its sign.
    """
    error = min(max(kl / target - 1, -0.2), 0.2)
    return coefficient * (1 + error * min(num_samples / horizon, 1.0))
