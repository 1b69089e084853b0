"""Who earned what: from one reward a trajectory to one advantage and one weight a token."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from roll.algorithms.aggregation import rows_of
from roll.errors import ConfigError
from roll.registry import ADVANTAGES, AGGREGATIONS
from roll.types import Batch, Call


def assign_credit(batch: Batch, advantage: Call, aggregation: Call) -> Batch:
    """The batch with `advantages` and `weights`; both are zero on tokens that are not trained on.

    Needs the whole global batch: baselines and denominators are taken over all of it.
    """
    earned = _row(
        advantage, ADVANTAGES[advantage.name](batch.rewards, batch.group, **advantage.arguments), batch.rewards
    )
    weights = _row(aggregation, AGGREGATIONS[aggregation.name](batch, **aggregation.arguments), batch.trained)
    spread = earned[batch.trajectory][rows_of(batch)].float()
    return replace(
        batch,
        advantages=torch.where(batch.trained, spread, torch.zeros_like(spread)),
        weights=torch.where(batch.trained, weights, torch.zeros_like(weights)),
    )


def _row(function: Call, found: Any, like: torch.Tensor) -> torch.Tensor:
    if not isinstance(found, torch.Tensor) or found.shape != like.shape:
        got = tuple(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
        raise ConfigError(
            f"{function.name}: must return a tensor of shape {tuple(like.shape)} (got {got}); fix its code"
        )
    return found
