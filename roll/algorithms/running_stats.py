"""Running mean and standard deviation in three numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch


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
