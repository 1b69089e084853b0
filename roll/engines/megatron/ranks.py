"""The process groups of Megatron-Core: tensor, context, data, pipeline and expert parallelism."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist

from roll.config.megatron import package_fault
from roll.engines.fsdp.ranks import Ranks
from roll.engines.megatron import cpu
from roll.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronLayout:
    """Number of ranks, their rendezvous, and how they divide the model."""

    url: str
    """As in `roll.engines.fsdp.ranks.ParallelLayout`."""
    size: int
    role: str = "actor_train"
    tp: int = 1
    """Ranks that share every layer; they also divide the tokens between layers (sequence parallelism)."""
    pp: int = 1
    """Stages of layers (pipeline parallelism)."""
    cp: int = 1
    """Ranks that share every sequence (context parallelism)."""
    ep: int = 1
    """Ranks that share the experts of a layer (expert parallelism)."""
    timeout_s: float = 600.0
    """For all ranks to join, and for each message."""

    @property
    def dp(self) -> int:
        """Number of ranks of a stage that read different rows."""
        return self.size // (self.tp * self.cp * self.pp)

    @property
    def expert_tp(self) -> int:
        """Ranks that share each expert: gradients of whole experts are summed over ranks only if `ep` is above 1."""
        return self.tp if self.ep == 1 else 1

    @property
    def text(self) -> str:
        """For messages and for checkpoints."""
        sizes = {"dp": self.dp, "tp": self.tp, "pp": self.pp, "cp": self.cp, "ep": self.ep}
        return " ".join(f"{name} {size}" for name, size in sizes.items() if size > 1) or "one rank"


class MegatronRanks(Ranks):
    """This process's rank and its groups. A process can be in one such set of ranks at a time."""

    layout: Any
    stage: int
    """Index of this rank's pipeline stage."""
    expert_rank: int
    """Index among the ranks that share the experts."""
    expert_tp_rank: int

    def __init__(self, layout: MegatronLayout, rank: int) -> None:
        self.layout, self.rank, self._joined = layout, rank, False

    def join(self, device: torch.device) -> None:
        """Join the other ranks; all must call this. Does nothing after the first call."""
        if self._joined:
            return
        if device.index is not None:
            torch.cuda.set_device(device)
        layout = self.layout
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            init_method=layout.url,
            rank=self.rank,
            world_size=layout.size,
            timeout=timedelta(seconds=layout.timeout_s),
        )
        groups = parallel_state()
        groups.initialize_model_parallel(
            tensor_model_parallel_size=layout.tp,
            pipeline_model_parallel_size=layout.pp,
            context_parallel_size=layout.cp,
            expert_model_parallel_size=layout.ep,
            expert_tensor_parallel_size=layout.expert_tp,
            create_gloo_process_groups=False,  # for Megatron-Core's own checkpoints
        )
        from roll.engines.megatron.package import model_parallel_cuda_manual_seed

        model_parallel_cuda_manual_seed(0)  # nothing is drawn: weights are read, and there is no dropout
        self.dp_rank = groups.get_data_parallel_rank()
        self.tp_rank = groups.get_tensor_model_parallel_rank()
        self.cp_rank = groups.get_context_parallel_rank()
        self.stage = groups.get_pipeline_model_parallel_rank()
        self.expert_rank = groups.get_expert_model_parallel_rank()
        self.expert_tp_rank = groups.get_expert_tensor_parallel_rank()
        self.tensor = groups.get_tensor_model_parallel_group() if layout.tp > 1 else None
        self.context = groups.get_context_parallel_group() if layout.cp > 1 else None
        self.first_copy = groups.get_data_parallel_rank(with_context_parallel=True) == 0
        self.first_expert_copy = groups.get_expert_data_parallel_rank() == 0
        self._joined = True

    @property
    def last_stage(self) -> bool:
        """Whether this rank has the output layer."""
        return self.stage == self.layout.pp - 1

    @property
    def reports(self) -> bool:
        """Whether this rank's metrics and rows count: of those with equal ones, the first."""
        return self.last_stage and self.tp_rank == 0 and self.cp_rank == 0

    def leave(self) -> None:
        """Leave the group."""
        if self._joined:
            parallel_state().destroy_model_parallel()
            dist.destroy_process_group()
            self._joined = False


def parallel_state() -> Any:
    """Megatron-Core's groups; raises `ConfigError` if the package is missing or of another release."""
    cpu.install()
    try:
        core: Any = import_module("megatron.core")
    except ImportError:
        raise ConfigError(f"actor_train.backend: {package_fault(None)}") from None
    if fault := package_fault(core.__version__):
        raise ConfigError(f"actor_train.backend: {fault}")
    return import_module("megatron.core.parallel_state")
