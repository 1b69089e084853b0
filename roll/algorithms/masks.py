"""Masks of trajectories: `f(batch, **kwargs) -> [trajectories]` bool, true where a trajectory may be trained on.

A masked trajectory still counts in the baselines of its siblings.
"""

from __future__ import annotations

import torch

from roll.algorithms.segments import mean_by, num_trained, siblings
from roll.types import Batch


def truncated(batch: Batch) -> torch.Tensor:
    """Keeps trajectories that ended without reaching a limit."""
    return ~batch.truncated


def difficulty(batch: Batch, *, low: float = 0.0, high: float = 1.0) -> torch.Tensor:
    """Keeps trajectories of groups whose mean reward is above `low` and below `high`: neither too hard nor too easy."""
    mean = mean_by(siblings(batch.group), batch.rewards)
    return (low < mean) & (mean < high)


def overlong_wrong(batch: Batch, *, max_tokens: int, right: float = 1.0) -> torch.Tensor:
    """Drops trajectories with more than `max_tokens` trained tokens and a reward below `right`."""
    return (num_trained(batch) <= max_tokens) | (batch.rewards >= right)
