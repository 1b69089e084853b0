"""Processes that hold the ranks of Megatron trainers."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from benchmarks.rank_processes import RankHost, RankTeam, RankWorker, RemoteTrainer
from roll.config.router_losses import RouterLosses
from roll.config.schema import Model, Optimizer
from roll.engines.megatron.logprob_model import MegatronLogprobModel
from roll.engines.megatron.ranks import MegatronLayout, MegatronRanks, parallel_state
from roll.engines.megatron.trainer import MegatronTrainer
from roll.engines.native.mixed import Precision
from roll.engines.native.model_spec import Head, ModelSpec
from roll.engines.native.trainer import NativeTrainerSettings
from roll.registry import CHANNELS
from roll.types import Sampling, Spec
from roll.weights.channel import Shared

_IMPORTED = ("megatron.core.models.gpt.gpt_model", "megatron.core.optimizer", "transformers.modeling_rope_utils")
"""Modules that all ranks need."""
_LIMIT_S = 90


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutCase:
    """A trainer and its layout; the processes fill in the rendezvous."""

    path: Path
    layout: MegatronLayout
    optimizer: Optimizer
    budget: int = 90
    precision: Precision = field(default_factory=Precision)
    channel: Spec | None = None
    head: Head = "logits"
    trains: bool = True
    router_losses: RouterLosses = field(default_factory=RouterLosses)

    @property
    def settings(self) -> NativeTrainerSettings:
        return NativeTrainerSettings(
            optimizer=self.optimizer,
            total_steps=100,
            tokens_per_microbatch=self.budget,
            sampling=Sampling(),
            device=torch.device("cpu"),
            precision=self.precision,
            router_losses=self.router_losses,
        )

    @property
    def model_spec(self) -> ModelSpec:
        return ModelSpec(model=Model(path=str(self.path)), head=self.head, engine="hf")


class MegatronWorker(RankWorker):
    """Makes trainers and models with fixed weights."""

    async def make(self, name: str, case: LayoutCase) -> None:
        channel, ranks = case.channel, MegatronRanks(case.layout, self.rank)
        if not case.trains:
            self.engines[name] = MegatronLogprobModel(case.model_spec, case.settings, ranks)
            return
        end = CHANNELS[channel.name](0, **channel.kwargs) if channel and self.rank == 0 else Shared()
        self.engines[name] = MegatronTrainer(case.model_spec, case.settings, ranks, end)


class MegatronHost(RankHost):
    """The ranks of backend megatron."""

    worker = MegatronWorker

    def prepare(self) -> None:
        parallel_state()
        for module in _IMPORTED:
            importlib.import_module(module)


class RankProcesses(RankTeam):
    """The processes of backend megatron."""

    def __init__(self) -> None:
        super().__init__("benchmarks.layout_ranks:MegatronHost", _LIMIT_S)

    def trainer(self, case: LayoutCase) -> LayoutTrainer:
        return LayoutTrainer(self, case)


class LayoutTrainer(RemoteTrainer):
    """The engines of a case, on as many ranks as its layout has."""

    def __init__(self, processes: RankProcesses, case: LayoutCase) -> None:
        super().__init__(processes, case.layout.size)
        url = f"file://{processes.folder}/{self.name}"
        self.case = replace(case, layout=replace(case.layout, url=url, timeout_s=_LIMIT_S))

    async def make(self) -> None:
        await self.processes.ask(self.size, "make", self.name, self.case)
