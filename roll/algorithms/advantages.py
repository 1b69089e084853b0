"""Rewards to advantages: `f(rewards [trajectories], group [trajectories], **kwargs) -> [trajectories]`.

A trajectory counts once, however many segments or tokens it has. Siblings are found by their group id, never by their
place in the tensor. Sums are taken in double precision, so equal rewards give an advantage of exactly zero.
"""

from __future__ import annotations

from typing import Any, cast

import torch


def group_normalised(
    rewards: torch.Tensor,
    group: torch.Tensor,
    *,
    unbiased: bool = False,
    eps: float = 1e-6,
    scale: bool = True,
) -> torch.Tensor:
    """Each reward less its siblings' mean, over their standard deviation plus `eps` unless `scale` is off.

    A group whose rewards are all equal, and a group of one, get exactly 0. `unbiased` divides the sum of squares by one
    less than the number of siblings.
    """
    exact = rewards.double()
    index, count = _siblings(group)
    centred = exact - (_sum_by(index, exact, len(count)) / count)[index]
    if not scale:
        return centred.to(rewards.dtype)
    divisor = (count - int(unbiased)).clamp(min=1)
    deviation = (_sum_by(index, centred.square(), len(count)) / divisor).sqrt()[index]
    normalised = centred / (deviation + eps)
    return torch.where(deviation > 0, normalised, torch.zeros_like(normalised)).to(rewards.dtype)


def batch_centred(rewards: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
    """Each reward less the mean over all trajectories of the batch; groups do not matter."""
    exact = rewards.double()
    return (exact - exact.mean()).to(rewards.dtype)


def _siblings(group: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Groups counted from 0: that of each trajectory, and how many trajectories each has."""
    _, index, count = cast(Any, torch).unique(group, return_inverse=True, return_counts=True)
    return index, count


def _sum_by(index: torch.Tensor, values: torch.Tensor, size: int) -> torch.Tensor:
    return torch.zeros(size, dtype=values.dtype, device=values.device).index_add_(0, index, values)
