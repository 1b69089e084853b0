"""Advantages of the control experiment, whose rewards are independent of the attempts they are assigned to."""

from __future__ import annotations

from dataclasses import replace

import torch

from roll.algorithms.advantages import gigpo, group_normalised
from roll.algorithms.segments import last_of_run
from roll.types import Batch


def shuffled(batch: Batch, *, seed: int = 0) -> torch.Tensor:
    """Group-normalised advantages of rewards permuted over the whole batch.

    A model that still learns with these learns from something other than its rewards.
    """
    order = torch.randperm(len(batch.rewards), generator=torch.Generator().manual_seed(seed))
    return group_normalised(replace(batch, rewards=batch.rewards[order.to(batch.rewards.device)]))


def shuffled_turns(batch: Batch, *, seed: int = 0) -> torch.Tensor:
    """Advantages of `gigpo` with the rewards of attempts permuted over the batch; the last turn gets the reward."""
    order = torch.randperm(len(batch.rewards), generator=torch.Generator().manual_seed(seed))
    rewards = batch.rewards[order.to(batch.rewards.device)]
    last = last_of_run(batch.turn_trajectory)
    return gigpo(replace(batch, rewards=rewards, turn_rewards=torch.where(last, rewards[batch.turn_trajectory], 0.0)))
