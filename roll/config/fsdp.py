"""The knobs of the trainer on many ranks, and the choice between it and the one in one process."""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

from pydantic import Discriminator, Field, Tag, model_validator

from roll.config.devices import num_devices
from roll.config.lora import Lora
from roll.config.parallel import Parallel
from roll.config.roles import NativeTrain, Optimizer, Placed


class FsdpTrain(Placed):
    """Training on `workers` ranks by FSDP2: each holds a part of every layer, of its gradient and of the optimizer."""

    backend: Literal["fsdp2"]
    parallel: Parallel = Parallel()
    """What ranks share beyond that; the others, `workers` over `tp` times `cp`, read rows of their own."""
    tokens_per_microbatch: int = Field(default=8192, gt=1)
    """Most tokens that go through a rank, or through those that share them, at once; changes no gradient."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of arithmetic and of what is published; weights, gradients and the optimizer keep 32 bits."""
    checkpointing: bool = False
    """Compute the inside of each layer again on the way back instead of keeping it: less memory, a third more work."""
    offload: bool = False
    """Keep weights and the optimizer's state on the host, and copy each layer to the GPU when it is due."""
    optimizer: Optimizer = Optimizer()
    lora: Lora | None = None
    """Train adapters instead of the model itself; None: all of the model is trained."""

    @model_validator(mode="after")
    def _ranks_divide(self) -> FsdpTrain:
        told = self.workers is not None or num_devices(self.devices) is not None
        if told and self.num_workers % self.parallel.size:
            raise ValueError(
                f"workers ({self.num_workers}) do not divide into groups of parallel.tp ({self.parallel.tp}) times "
                f"parallel.cp ({self.parallel.cp}); name a multiple"
            )
        return self


def check_ranks(executor: str, train: NativeTrain | FsdpTrain) -> None:
    """Raise where ranks have no processes to be in."""
    if isinstance(train, FsdpTrain) and executor == "inline":
        raise ValueError("actor_train.backend (fsdp2): every rank is a process; set executor to ray")


def _backend(given: Any) -> str:
    """Which of the sections below is meant; the native one where none is named."""
    if not isinstance(given, dict):
        return f"<{getattr(given, 'backend', 'native')}>"
    return f"<{cast(dict[str, Any], given).get('backend', 'native')}>"


Train = Annotated[
    Annotated[NativeTrain, Tag("<native>")] | Annotated[FsdpTrain, Tag("<fsdp2>")], Discriminator(_backend)
]
"""The brackets tell the name of a choice from that of a key, where something is wrong."""
