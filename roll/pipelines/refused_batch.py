"""Batches whose update was refused, saved for analysis."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

import torch

from roll.errors import one_line
from roll.tracking.log import announce
from roll.types import Batch


def save_refused_batch(directory: Path, step: int, batch: Batch, policy: str = "") -> Path:
    """Write a batch with a non-finite update, for analysis with `torch.load`; a failed write is only reported."""
    path = directory / "refused" / f"step-{step}{policy and f'-{policy}'}.pt"
    try:
        path.parent.mkdir(exist_ok=True)
        torch.save({field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}, path)
    except (OSError, RuntimeError) as error:  # torch's writer raises either
        announce(f"{path}: not written ({one_line(str(error))})", logging.WARNING)
    return path
