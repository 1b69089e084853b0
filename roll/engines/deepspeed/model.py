"""A model whose parameters DeepSpeed ZeRO holds: whole on every rank in stages 1 and 2, in parts in stage 3."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from roll.engines.deepspeed.package import deepspeed
from roll.engines.fsdp.huggingface import ShardedHuggingFace
from roll.engines.fsdp.model import ShardedDecoder
from roll.engines.fsdp.ranks import ParallelLayout
from roll.engines.fsdp.sharded import ShardedModel
from roll.engines.native.mixed import Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroLayout(ParallelLayout):
    """Number of ranks, and what they divide; `offload` keeps the parameters of stage 3 on the host."""

    stage: int = 3
    offload_optimizer: bool = False
    whole_below: int = 100_000
    """In stage 3, parameters with at most this many numbers stay whole on every rank."""

    def settings(self) -> dict[str, Any]:
        """The section `zero_optimization` of DeepSpeed's configuration."""
        settings: dict[str, Any] = {"stage": self.stage, "stage3_param_persistence_threshold": self.whole_below}
        if self.offload_optimizer:
            settings["offload_optimizer"] = {"device": "cpu"}
        if self.offload:
            settings["offload_param"] = {"device": "cpu"}
        return settings


class ZeroModel(ShardedModel):
    """It is created without memory: `allocate` gives it some, `fill` loads the weights once there is an optimizer."""

    def allocate(self, layers: Iterable[nn.Module], device: torch.device, precision: Precision) -> None:
        """Allocate the parameters; in stage 3 one after the other, of which each rank keeps its part."""
        self.device, layout = device, self._layout
        init = None
        if layout.stage == 3:
            config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": layout.settings()}
            remote = "cpu" if layout.offload else None
            init = deepspeed("zero").Init(config_dict_or_path=config, dtype=precision.dtype, remote_device=remote)
        for module in self.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                pass
        buffers = {name: buffer.to(device) for name, buffer in self.named_buffers()}
