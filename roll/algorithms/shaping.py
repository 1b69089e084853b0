"""Rewards to other rewards: `f(batch, moments, **kwargs) -> [trajectories]` fp32, applied before baselines are taken.

`moments` are those of all rewards so far, this batch's among them.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch

from roll.algorithms.running_stats import Moments
from roll.algorithms.segments import deviation_by, divided, mean_by, num_trained, siblings
from roll.errors import ConfigError, UnknownName
from roll.types import Batch

Extent: TypeAlias = Literal["group", "batch", "running", "none"]
"""Over what a statistic is taken: the siblings, the batch, the whole run, or not at all."""


def clipped(batch: Batch, moments: Moments, *, low: float, high: float) -> torch.Tensor:
    """Rewards, none below `low` and none above `high`."""
    return batch.rewards.clamp(low, high)


def scaled(batch: Batch, moments: Moments, *, factor: float = 1.0, shift: float = 0.0) -> torch.Tensor:
    """Rewards times `factor` plus `shift`."""
    return batch.rewards * factor + shift


def normalised(
    batch: Batch,
    moments: Moments,
    *,
    mean: Extent = "group",
    std: Extent = "group",
    unbiased: bool = False,
    eps: float = 1e-6,
) -> torch.Tensor:
    """Rewards less one mean, over one standard deviation plus `eps`; each may be of another extent.

    The deviation is always that about its own extent's mean. Where it is 0 the result is exactly 0.
    """
    centred = batch.rewards - _mean(batch, moments, mean)
    if std == "none":
        return centred.float()
    return divided(centred, _deviation(batch, moments, std, unbiased=unbiased), eps).float()


def overlong(batch: Batch, moments: Moments, *, max_tokens: int, buffer: int, factor: float = 1.0) -> torch.Tensor:
    """Rewards less a penalty for trained tokens beyond `max_tokens - buffer`.

    It grows evenly over the buffer, to `factor` at `max_tokens`, and no further.
    """
    if buffer <= 0:
        raise ConfigError(f"overlong: buffer must be above 0 (got {buffer}); give the tokens over which it grows")
    excess = (num_trained(batch) - (max_tokens - buffer)) / buffer
    return (batch.rewards - factor * excess.clamp(0, 1)).float()


def format(batch: Batch, moments: Moments, *, part: str = "format", penalty: float = 1.0) -> torch.Tensor:
    """Rewards less `penalty` where the score has a part of that name that is not 1; without the part, no penalty."""
    found = batch.parts.get(part)
    if found is None or bool(found.isnan().all()):
        known = ", ".join(sorted(batch.parts)) or "none"
        raise ConfigError(f"format: no score has a part {part!r} (got {known}); name a part that a reward gives")
    wrong = ~found.isnan() & (found != 1)
    return torch.where(wrong, batch.rewards - penalty, batch.rewards)


def _mean(batch: Batch, moments: Moments, extent: Extent) -> torch.Tensor:
    if extent == "none":
        return torch.zeros_like(batch.rewards, dtype=torch.float64)
    if extent == "running":
        return torch.full_like(batch.rewards, moments.mean, dtype=torch.float64)
    return mean_by(_index(batch, extent), batch.rewards)


def _deviation(batch: Batch, moments: Moments, extent: Extent, *, unbiased: bool) -> torch.Tensor:
    if extent == "running":
        return torch.full_like(batch.rewards, moments.std(unbiased=unbiased), dtype=torch.float64)
    return deviation_by(_index(batch, extent), batch.rewards, unbiased=unbiased)


def _index(batch: Batch, extent: Extent) -> torch.Tensor:
    if extent == "group":
        return siblings(batch.group)
    if extent == "batch":
        return torch.zeros_like(batch.group)
    raise UnknownName("extent", extent, ("group", "batch", "running", "none"))
