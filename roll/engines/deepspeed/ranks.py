"""The ranks of a DeepSpeed trainer: what they divide, and how DeepSpeed joins their process group."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from roll.engines.deepspeed.package import deepspeed
from roll.engines.fsdp.ranks import ParallelLayout, Ranks


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


class ZeroRanks(Ranks):
    """Ranks whose process group DeepSpeed uses too."""

    def join(self, device: torch.device) -> None:
        super().join(device)
        os.environ["DS_ACCELERATOR"] = device.type
        os.environ["LOCAL_RANK"] = str(device.index or 0)
        logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
        package, comm = deepspeed(), deepspeed("comm")
        package.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # needs a C++ compiler and a minute; gloo does it
        if not comm.is_initialized():
            comm.init_distributed(dist.get_backend(), auto_mpi_discovery=False)

    def leave(self) -> None:
        if self._joined:
            comm = deepspeed("comm")
            comm.destroy_process_group()
            comm.comm.cdb = None  # it would keep the group
            self._joined = False
