"""Mean and deviation of everything seen so far, in three numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """What is remembered of all rewards so far."""

    count: int = 0
    mean: float = 0.0
    square: float = 0.0
    """Sum of squared deviations from the mean."""

    def after(self, rewards: torch.Tensor) -> Moments:
        """With these rewards added; the same as if all had come at once."""
        if not len(rewards):
            return self
        exact = rewards.double()
        mean = float(exact.mean())
        square = float((exact - mean).square().sum())
        count = self.count + len(rewards)
        apart = mean - self.mean
        return Moments(
            count=count,
            mean=self.mean + apart * len(rewards) / count,
            square=self.square + square + apart * apart * self.count * len(rewards) / count,
        )

    def std(self, *, unbiased: bool) -> float:
        """The standard deviation; 0 where there is nothing to deviate from."""
        return math.sqrt(self.square / max(self.count - int(unbiased), 1))
