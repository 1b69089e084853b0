"""The control experiment: rewards that say nothing about the attempts they are given to."""

from __future__ import annotations

import torch

from roll.algorithms.advantages import group_normalised


def shuffled(rewards: torch.Tensor, group: torch.Tensor, *, seed: int = 0) -> torch.Tensor:
    """Group-normalised advantages after the rewards have changed places over the whole batch.

    A model that still learns with these learns from something else than its rewards.
    """
    order = torch.randperm(len(rewards), generator=torch.Generator().manual_seed(seed))
    return group_normalised(rewards[order.to(rewards.device)], group)
