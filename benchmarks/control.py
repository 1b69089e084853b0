"""The control experiment: rewards that say nothing about the attempts they are given to."""

from __future__ import annotations

from dataclasses import replace

import torch

from roll.algorithms.advantages import gigpo, group_normalised
from roll.algorithms.segments import last_of_run
from roll.types import Batch


def shuffled(batch: Batch, *, seed: int = 0) -> torch.Tensor:
    """Group-normalised advantages after the rewards have changed places over the whole batch.

    A model that still learns with these learns from something else than its rewards.
    """
    order = torch.randperm(len(batch.rewards), generator=torch.Generator().manual_seed(seed))
    return group_normalised(replace(batch, rewards=batch.rewards[order.to(batch.rewards.device)]))


def shuffled_turns(batch: Batch, *, seed: int = 0) -> torch.Tensor:
    """Those of `gigpo` after the rewards of whole attempts have changed places; each is earned in the last turn."""
    order = torch.randperm(len(batch.rewards), generator=torch.Generator().manual_seed(seed))
    rewards = batch.rewards[order.to(batch.rewards.device)]
    last = last_of_run(batch.turn_trajectory)
    return gigpo(replace(batch, rewards=rewards, turn_rewards=torch.where(last, rewards[batch.turn_trajectory], 0.0)))
