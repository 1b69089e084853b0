"""Learning rate as a function of the number of applied optimizer steps."""

from __future__ import annotations

import math

from roll.config.schema import Optimizer


def lr_at(step: int, total: int, optimizer: Optimizer) -> float:
    """The learning rate of optimizer step `step`, counted from 0, out of `total`."""
    if step < optimizer.warmup_steps:
        return optimizer.lr * (step + 1) / (optimizer.warmup_steps + 1)
    if optimizer.schedule == "constant":
        return optimizer.lr
    remaining = max(0.0, (total - step) / max(1, total - optimizer.warmup_steps))
    shape = remaining if optimizer.schedule == "linear" else (1 - math.cos(math.pi * remaining)) / 2
    return optimizer.lr * (optimizer.final_lr_ratio + (1 - optimizer.final_lr_ratio) * shape)
