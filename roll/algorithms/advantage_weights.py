"""Weights of whole trajectories: `f(batch, **kwargs) -> [trajectories]` fp32, multiplied into their advantages."""

from __future__ import annotations

import torch

from roll.algorithms.segments import mean_by, num_trained, siblings
from roll.types import Batch


def difficulty(batch: Batch, *, strength: float = 1.0) -> torch.Tensor:
    """From 1 where the siblings' mean reward is at least 1, linearly up to 1 + `strength` where it is at most 0."""
    mean = mean_by(siblings(batch.group), batch.rewards)
    return (1 + strength * (1 - mean.clamp(0, 1))).float()


def length(batch: Batch, *, power: float = 1.0) -> torch.Tensor:
    """Mean number of trained tokens over the trajectory's number, to the `power`: below 1 for long ones.

    The mean is over trajectories with trained tokens; a trajectory without any gets 1.
    """
    tokens = num_trained(batch)
    nonempty = tokens > 0
    mean = tokens.sum() / nonempty.sum().clamp(min=1)
    return torch.where(nonempty, (mean / tokens.clamp(min=1)) ** power, 1.0).float()
