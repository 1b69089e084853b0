"""The section of the DeepSpeed trainer."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from roll.config.lora import Lora
from roll.config.roles import Optimizer, Parallel, RoleConfig

RELEASE = "0.19"
"""Releases of this series of the package are supported."""


class DeepspeedTrain(RoleConfig):
    """Training on `workers` ranks by DeepSpeed ZeRO; needs the package `deepspeed`."""

    backend: Literal["deepspeed"]
    """Trains with DeepSpeed on several devices."""
    zero_stage: Literal[1, 2, 3] = 3
    """What ranks divide: 1 the optimizer state, 2 also the gradients, 3 also the weights."""
    offload_optimizer: bool = False
    """Hold the optimizer state in host memory, where the optimizer computes."""
    offload_parameters: bool = False
    """Hold the weights in host memory, and copy each layer to the GPU for its computation; only with `zero_stage` 3."""
    parallel: Parallel = Parallel()
    """All ranks are data parallel: `tp` and `cp` are 1."""
    tokens_per_microbatch: int = Field(default=8192, gt=1)
    """Most tokens per forward pass of a rank; does not change gradients."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of computation and of published weights; master weights and optimizer state have 32 bits."""
    activation_checkpointing: bool = False
    """Recompute the inside of each layer in the backward pass: less memory, a third more work."""
    optimizer: Optimizer = Optimizer()
    lora: Lora | None = None
    """Not supported: DeepSpeed trains the whole model."""

    @model_validator(mode="after")
    def _ranks_are_data_parallel(self) -> DeepspeedTrain:
        for name in ("tp", "cp"):
            if (size := getattr(self.parallel, name)) > 1:
                raise ValueError(
                    f"parallel.{name} ({size}): deepspeed divides rows only; set it to 1, or choose backend fsdp2"
                )
        return self

    @model_validator(mode="after")
    def _stage_fits(self) -> DeepspeedTrain:
        if self.offload_parameters and self.zero_stage < 3:
            raise ValueError(
                f"offload_parameters: with zero_stage {self.zero_stage} every rank holds all weights; set it to 3"
            )
        return self

    @model_validator(mode="after")
    def _state_can_be_saved(self) -> DeepspeedTrain:
        if self.optimizer.custom is not None:
            raise ValueError(
                f"optimizer: deepspeed saves the state of adamw and sgd alone (got {self.optimizer.kind}); "
                "choose one of them, or backend native"
            )
        if self.lora is not None:
            raise ValueError("lora: deepspeed trains whole models; leave it out, or choose backend fsdp2")
        return self


def release_fault(release: str | None) -> str:
    """Why this release of the package cannot be used, None if it is not installed; empty if it can."""
    fix = f"install deepspeed {RELEASE}, with the environment variable DS_BUILD_OPS=0"
    if release is None:
        return f"needs a package that is not installed; {fix}"
    if release.split(".")[:2] != RELEASE.split("."):
        return f"does not support this release of DeepSpeed (got {release}); {fix}"
    return ""
