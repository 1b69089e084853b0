"""The learning rate as a function of how many optimizer steps were really made."""

from __future__ import annotations

import math

from roll.config.schema import Optimizer


def lr_at(step: int, total: int, optimizer: Optimizer) -> float:
    """For the optimizer step with this number, counted from 0, of `total`."""
    if step < optimizer.warmup_steps:
        return optimizer.lr * (step + 1) / (optimizer.warmup_steps + 1)
    if optimizer.schedule == "constant":
        return optimizer.lr
    left = max(0.0, (total - step) / max(1, total - optimizer.warmup_steps))
    shape = left if optimizer.schedule == "linear" else (1 - math.cos(math.pi * left)) / 2
    return optimizer.lr * (optimizer.final_lr + (1 - optimizer.final_lr) * shape)
