"""Reward shaping: `f(batch, stats, **kwargs) -> [trajectories]` fp32 rewards, applied before baselines.

`stats` are the statistics of all rewards so far, including this batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch

from roll.algorithms.segments import deviation_by, divide_or_zero, mean_by, num_trained, siblings
from roll.errors import ConfigError, UnknownName
from roll.types import Batch

Extent: TypeAlias = Literal["group", "batch", "running", "none"]
"""Scope of a statistic: the group, the batch, the whole run, or not used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningStats:
    """Mean and spread of all rewards so far."""

    count: int = 0
    mean: float = 0.0
    sum_squares: float = 0.0
    """Sum of squared deviations from the mean."""

    def after(self, rewards: torch.Tensor) -> RunningStats:
        """The statistics with these rewards added, equal to those of all rewards at once."""
        if not len(rewards):
            return self
        exact = rewards.double()
        mean = float(exact.mean())
        squares = float((exact - mean).square().sum())
        count = self.count + len(rewards)
        shift = mean - self.mean
        return RunningStats(
            count=count,
            mean=self.mean + shift * len(rewards) / count,
            sum_squares=self.sum_squares + squares + shift * shift * self.count * len(rewards) / count,
        )

    def std(self, *, unbiased: bool) -> float:
        """Standard deviation; 0 for fewer than two rewards."""
        return math.sqrt(self.sum_squares / max(self.count - int(unbiased), 1))


def clipped(batch: Batch, stats: RunningStats, *, low: float, high: float) -> torch.Tensor:
    """Rewards clipped to `low` and `high`."""
    return batch.rewards.clamp(low, high)


def scaled(batch: Batch, stats: RunningStats, *, factor: float = 1.0, shift: float = 0.0) -> torch.Tensor:
    """Rewards times `factor` plus `shift`."""
    return batch.rewards * factor + shift


def normalised(
    batch: Batch,
    stats: RunningStats,
    *,
    mean: Extent = "group",
    std: Extent = "group",
    unbiased: bool = False,
    eps: float = 1e-6,
) -> torch.Tensor:
    """Rewards minus a mean, divided by a standard deviation plus `eps`; each may have a different scope.

    The deviation is always about the mean of the same scope. Where it is 0 the result is exactly 0.
    """
    centred = batch.rewards - _mean(batch, stats, mean)
    if std == "none":
        return centred.float()
    return divide_or_zero(centred, _deviation(batch, stats, std, unbiased=unbiased), eps).float()


def overlong(batch: Batch, stats: RunningStats, *, max_tokens: int, buffer: int, factor: float = 1.0) -> torch.Tensor:
    """Rewards minus a penalty for trained tokens beyond `max_tokens - buffer`.

    The penalty grows linearly over the buffer, up to `factor` at `max_tokens`.
    """
    if buffer <= 0:
        raise ConfigError(f"overlong: buffer must be above 0 (got {buffer}); set the tokens over which it grows")
    excess = (num_trained(batch) - (max_tokens - buffer)) / buffer
    return (batch.rewards - factor * excess.clamp(0, 1)).float()


def format(batch: Batch, stats: RunningStats, *, part: str = "format", penalty: float = 1.0) -> torch.Tensor:
    """Rewards minus `penalty` where the reward part of that name is not 1; no penalty where the part is missing."""
    values = batch.parts.get(part)
    if values is None or bool(values.isnan().all()):
        known = ", ".join(sorted(batch.parts)) or "none"
        raise ConfigError(f"format: no reward has a part {part!r} (got {known}); name a part that a reward returns")
    wrong = ~values.isnan() & (values != 1)
    return torch.where(wrong, batch.rewards - penalty, batch.rewards)


def _mean(batch: Batch, stats: RunningStats, extent: Extent) -> torch.Tensor:
    if extent == "none":
        return torch.zeros_like(batch.rewards, dtype=torch.float64)
    if extent == "running":
        return torch.full_like(batch.rewards, stats.mean, dtype=torch.float64)
    return mean_by(_index(batch, extent), batch.rewards)


def _deviation(batch: Batch, stats: RunningStats, extent: Extent, *, unbiased: bool) -> torch.Tensor:
    if extent == "running":
        return torch.full_like(batch.rewards, stats.std(unbiased=unbiased), dtype=torch.float64)
    return deviation_by(_index(batch, extent), batch.rewards, unbiased=unbiased)


def _index(batch: Batch, extent: Extent) -> torch.Tensor:
    if extent == "group":
        return siblings(batch.group)
    if extent == "batch":
        return torch.zeros_like(batch.group)
    raise UnknownName("extent", extent, ("group", "batch", "running", "none"))
