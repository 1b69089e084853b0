"""Failures of a GPU as errors of one line."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import torch

from roll.errors import RunStopped, one_line

DEVICE_ERRORS = (torch.OutOfMemoryError, torch.AcceleratorError)
"""What torch raises if a device has too little memory or fails."""
_BUG = "device-side assert"
"""A failed check in a kernel is a bug, not a failure of the device."""


def device_failure(error: Exception, directory: Path) -> RunStopped | None:
    """The error of a run that a failed device ends; None if this is something else."""
    if isinstance(error, ExceptionGroup):
        group = cast(ExceptionGroup[Exception], error)
        failures = (device_failure(each, directory) for each in group.exceptions)
        return next((failure for failure in failures if failure is not None), None)
    if not isinstance(error, DEVICE_ERRORS) or _BUG in str(error):
        return None
    reason, resume = one_line(str(error).partition("\n")[0]), f"`roll resume {directory}`"
    if isinstance(error, torch.OutOfMemoryError):
        smaller = "actor_train.tokens_per_microbatch, actor_infer.max_num_seqs or actor_infer.kv_cache_gib"
        return RunStopped(f"the device has too little memory ({reason}); lower {smaller}, then {resume}")
    return RunStopped(f"the device has failed ({reason}); see whether nvidia-smi still shows it, then {resume}")
