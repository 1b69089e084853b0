"""The FSDP2 trainer, and the choice between it and the native one."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from roll.config.devices import num_devices
from roll.config.lora import Lora
from roll.config.roles import NativeTrain, Optimizer, Parallel, RoleConfig, backend_tag


class FsdpTrain(RoleConfig):
    """Training on `workers` ranks by FSDP2, which shards weights, gradients and optimizer state of every layer."""

    backend: Literal["fsdp2"]
    parallel: Parallel = Parallel()
    """Tensor and context parallelism; `workers` over `tp` times `cp` groups are data parallel."""
    tokens_per_microbatch: int = Field(default=8192, gt=1)
    """Most tokens per forward pass of a rank, or of a group of ranks that share them; does not change gradients."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of computation and of published weights; master weights, gradients and optimizer state have 32 bits."""
    activation_checkpointing: bool = False
    """Recompute the inside of each layer in the backward pass: less memory, a third more work."""
    offload: bool = False
    """Hold weights and optimizer state in host memory, and copy each layer to the GPU for its computation."""
    optimizer: Optimizer = Optimizer()
    lora: Lora | None = None
    """Train LoRA adapters; None: train the whole model."""

    @model_validator(mode="after")
    def _ranks_divide(self) -> FsdpTrain:
        known = self.workers is not None or num_devices(self.devices) is not None
        if known and self.num_workers % self.parallel.size:
            raise ValueError(
                f"workers ({self.num_workers}) do not divide into groups of parallel.tp ({self.parallel.tp}) times "
                f"parallel.cp ({self.parallel.cp}); name a multiple"
            )
        return self


def check_ranks(executor: str, train: NativeTrain | FsdpTrain) -> None:
    """Raise ValueError if the ranks need processes and the executor has none."""
    if isinstance(train, FsdpTrain) and executor == "inline":
        raise ValueError("actor_train.backend (fsdp2): every rank is a process; set executor to ray")


Train = Annotated[
    Annotated[NativeTrain, Tag("<native>")] | Annotated[FsdpTrain, Tag("<fsdp2>")], Discriminator(backend_tag)
]
