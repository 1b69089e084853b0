"""How much whole trajectories matter: `f(batch, **kwargs) -> [trajectories]` fp32, multiplied into advantages."""

from __future__ import annotations

import torch

from roll.algorithms.segments import mean_by, num_trained, siblings
from roll.types import Batch


def difficulty(batch: Batch, *, strength: float = 1.0) -> torch.Tensor:
    """1 where the siblings' mean reward is 1 or above, growing evenly to 1 + `strength` where it is 0 or below."""
    mean = mean_by(siblings(batch.group), batch.rewards)
    return (1 + strength * (1 - mean.clamp(0, 1))).float()


def length(batch: Batch, *, power: float = 1.0) -> torch.Tensor:
    """The mean number of trained tokens over a trajectory's own, to the `power`: below 1 for long ones.

    The mean is over trajectories that have any; one that has none gets 1.
    """
    own = num_trained(batch)
    some = own > 0
    mean = own.sum() / some.sum().clamp(min=1)
    return torch.where(some, (mean / own.clamp(min=1)) ** power, 1.0).float()
