"""Ranks for tests of trainers over ranks: real processes, started once, which can hold any trainer."""

from __future__ import annotations

import importlib
import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from benchmarks.rank_processes import RankHost, RankTeam, RankWorker, RemoteTrainer
from roll.config.lora import Lora
from roll.config.quantization import Quantization
from roll.config.router_losses import RouterLosses
from roll.config.schema import Model, Optimizer
from roll.engines.fsdp.ranks import ParallelLayout, Ranks
from roll.engines.fsdp.trainer import FsdpTrainer
from roll.engines.hf.decoder import HuggingFaceDecoder
from roll.engines.native.decoder import Decoder
from roll.engines.native.mixed import Precision
from roll.engines.native.model_spec import Head, ModelSpec
from roll.engines.native.trainer import NativeTrainer, NativeTrainerSettings
from roll.registry import CHANNELS
from roll.types import Sampling, Spec
from roll.weights.channel import Channel, Shared
from roll.weights.huggingface import write_model

_LIMIT_S = 120
CPU = torch.device("cpu")
ADAMW, PLAIN = Optimizer(lr=1e-2), Precision()
SGD = Optimizer(kind="sgd", lr=1.0, max_grad_norm=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSpec:
    """A trainer and its parallel layout; the team fills in the rendezvous."""

    path: Path
    """Directory of the model."""
    size: int = 2
    tp: int = 1
    cp: int = 1
    offload: bool = False
    zero_stage: int | None = None
    """Stage of DeepSpeed's trainer; None: FSDP2."""
    offload_optimizer: bool = False
    budget: int = 4096
    optimizer: Optimizer = ADAMW
    precision: Precision = PLAIN
    sampling_of: dict[str, Sampling] = field(default_factory=dict[str, Sampling])
    channel: Spec | None = None
    head: Head = "logits"
    lora: Lora | None = None
    engine: str = "native"
    router_losses: RouterLosses = field(default_factory=RouterLosses)
    quantization: Quantization | None = None

    def settings(self) -> NativeTrainerSettings:
        return NativeTrainerSettings(
            optimizer=self.optimizer,
            total_steps=100,
            tokens_per_microbatch=self.budget,
            sampling=Sampling(),
            sampling_of=self.sampling_of,
            device=CPU,
            precision=self.precision,
            router_losses=self.router_losses,
            quantization=self.quantization,
        )

    def layout(self, url: str) -> ParallelLayout:
        common: dict[str, Any] = {"url": url, "size": self.size, "offload": self.offload, "timeout_s": _LIMIT_S}
        if self.zero_stage is None:
            return ParallelLayout(**common, tp=self.tp, cp=self.cp)
        from roll.engines.deepspeed.ranks import ZeroLayout

        return ZeroLayout(**common, stage=self.zero_stage, offload_optimizer=self.offload_optimizer, whole_below=100)

    def ranks(self, layout: ParallelLayout, rank: int) -> Ranks:
        if self.zero_stage is None:
            return Ranks(layout, rank)
        from roll.engines.deepspeed.ranks import ZeroRanks

        return ZeroRanks(layout, rank)

    def trainer(self, ranks: Ranks, channel: Channel) -> FsdpTrainer:
        if self.zero_stage is None:
            return FsdpTrainer(self.model_spec(), self.settings(), ranks, channel)
        from roll.engines.deepspeed.trainer import DeepspeedTrainer

        return DeepspeedTrainer(self.model_spec(), self.settings(), ranks, channel)

    def model_spec(self) -> ModelSpec:
        return ModelSpec(model=Model(path=str(self.path)), head=self.head, lora=self.lora, engine=self.engine)


def _persistent(ranks: Ranks) -> Any:
    """These ranks, except that they stay joined when a trainer stops: joining again would take most of the time."""

    class Persistent:
        def __getattr__(self, name: str) -> Any:
            return getattr(ranks, name)

        def leave(self) -> None:
            pass

    return Persistent()


class TeamWorker(RankWorker):
    """Makes trainers, whose ranks stay joined as long as the layout does."""

    ranks: Ranks | None = None

    async def make(self, name: str, spec: TrainerSpec, layout: ParallelLayout) -> None:
        if self.ranks is None or self.ranks.layout != layout:
            if self.ranks is not None:
                self.ranks.leave()
            self.ranks = spec.ranks(layout, self.rank)
        channel = spec.channel
        built = CHANNELS[channel.name](0, **channel.kwargs) if channel and self.rank == 0 else Shared()
        self.engines[name] = spec.trainer(_persistent(self.ranks), built)

    async def look(self, name: str, what: str) -> Any:
        """Internal state of a trainer, for tests."""
        return LOOKS[what](self.engines[name])


def _local_sizes(trainer: FsdpTrainer) -> dict[str, int]:
    return {name: p.to_local().numel() for name, p in trainer.decoder.named_parameters()}


def _numbers_held(trainer: FsdpTrainer) -> dict[str, int]:
    """Of DeepSpeed's stage 3: this rank's part of each parameter, and the whole one if it is kept too."""
    parameters: Any = trainer.decoder.named_parameters()
    return {name: each.ds_tensor.numel() + each.numel() for name, each in parameters}


def _rotations(trainer: FsdpTrainer) -> Any:
    return trainer.decoder.rotations


def _dtypes(trainer: FsdpTrainer) -> set[str]:
    moments = [state["exp_avg"] for state in trainer._optimizer.state.values()]
    return {str(tensor.dtype) for tensor in (*trainer.decoder.parameters(), *moments)}


def _dtypes_by_name(trainer: FsdpTrainer) -> dict[str, str]:
    return {name: str(parameter.dtype) for name, parameter in trainer.decoder.named_parameters()}


LOOKS: dict[str, Any] = {
    "dtypes_by_name": _dtypes_by_name,
    "local_sizes": _local_sizes,
    "held": _numbers_held,
    "rotations": _rotations,
    "dtypes": _dtypes,
}


class TeamHost(RankHost):
    """The ranks of backends fsdp2 and deepspeed."""

    worker = TeamWorker

    def prepare(self) -> None:
        if find_spec("deepspeed") is not None:
            os.environ["DS_ACCELERATOR"] = "cpu"
            importlib.import_module("deepspeed")


class Team(RankTeam):
    """The processes, and their current layout."""

    def __init__(self) -> None:
        super().__init__("tests.engines.fsdp_team:TeamHost", _LIMIT_S)
        self._layout: ParallelLayout | None = None

    def trainer(self, spec: TrainerSpec) -> ShardedTrainer:
        return ShardedTrainer(self, spec)

    def layout(self, spec: TrainerSpec) -> ParallelLayout:
        """The current layout of the processes, or a new one if the spec differs."""
        layout = spec.layout(f"file://{self.folder}/{uuid.uuid4().hex}")
        if self._layout is None or replace(layout, url=self._layout.url) != self._layout:
            self._layout = layout
        return self._layout

    def kill(self) -> None:
        super().kill()
        self._layout = None


class ShardedTrainer(RemoteTrainer):
    """A trainer on as many ranks as its spec has."""

    def __init__(self, team: Team, spec: TrainerSpec) -> None:
        super().__init__(team, spec.size)
        self.team, self.spec = team, spec

    async def make(self) -> None:
        await self.team.ask(self.size, "make", self.name, self.spec, self.team.layout(self.spec))

    async def offload(self, parts: Sequence[str]) -> None:
        await self._same("offload", parts)

    async def onload(self, parts: Sequence[str]) -> None:
        await self._same("onload", parts)

    async def look(self, what: str) -> list[Any]:
        return await self.team.ask(self.size, "look", self.name, what)


def written(decoder: Decoder | HuggingFaceDecoder, path: Path) -> Path:
    """The model as a directory."""
    write_model(path, decoder.config, dict(decoder.named_tensors()))
    return path


def alone(spec: TrainerSpec, decoder: Decoder | HuggingFaceDecoder) -> NativeTrainer:
    """The same trainer in this process."""
    return NativeTrainer(decoder, spec.settings(), Shared())
