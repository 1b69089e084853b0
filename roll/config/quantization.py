"""What generation with quantised weights requires of the other sections of a run."""

from __future__ import annotations

from typing import Any, Literal

from roll.config.algorithm import Algorithm
from roll.config.lora import Lora

Quantization = Literal["fp8", "int8"]
READ_SAMPLER = ("topr", "decoupled")
"""Losses that read the sampler's logprobs."""
_SENDERS = ("native", "fsdp2")
"""Trainers that quantise what they publish."""


def check_quantization(infer: Any, train: Any, algorithm: Algorithm, lora: Lora | None) -> None:
    """Raise ValueError if a generator with quantised weights does not fit the rest of the run."""
    kind, key = getattr(infer, "quantization", None), "actor_infer.quantization"
    if kind is None:
        return
    if lora is not None:
        raise ValueError(f"{key} ({kind}): adapters are served with unquantised models; remove actor_train.lora, or it")
    if train.backend not in _SENDERS:
        raise ValueError(
            f"{key} ({kind}): backend {train.backend} publishes no quantised weights; set actor_train.backend to "
            f"{' or '.join(_SENDERS)}"
        )
    if algorithm.correction is None and algorithm.loss.kind not in READ_SAMPLER:
        raise ValueError(
            f"{key} ({kind}): tokens come from another distribution than the trainer's, and nothing corrects for it; "
            "set algorithm.correction to truncate"
        )
