"""Ranks for tests of trainers over ranks: real processes, started once, which can hold any trainer."""

from __future__ import annotations

import asyncio
import importlib
import multiprocessing
import os
import shutil
import tempfile
import threading
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from roll.algorithms.recipe import Objective
from roll.cluster.process import ProcessWorker
from roll.config.lora import Lora
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
from roll.types import Batch, Sampling, Spec
from roll.weights.channel import Channel, Shared
from roll.weights.digest import Digest
from roll.weights.huggingface import write_model

_RANKS = 4
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
        )

    def layout(self, url: str) -> ParallelLayout:
        common: dict[str, Any] = {"url": url, "size": self.size, "offload": self.offload, "timeout_s": 120}
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


class RankWorker:
    """The worker in each process."""

    def __init__(self, rank: int) -> None:
        torch.set_num_threads(1)
        self.rank = rank
        self.ranks: Ranks | None = None
        self.trainers: dict[str, FsdpTrainer] = {}

    async def make(self, name: str, spec: TrainerSpec, layout: ParallelLayout) -> None:
        if self.ranks is None or self.ranks.layout != layout:
            if self.ranks is not None:
                self.ranks.leave()
            self.ranks = spec.ranks(layout, self.rank)
        channel = spec.channel
        built = CHANNELS[channel.name](0, **channel.kwargs) if channel and self.rank == 0 else Shared()
        self.trainers[name] = spec.trainer(_persistent(self.ranks), built)

    async def call(self, name: str, method: str, *args: Any, **kwargs: Any) -> Any:
        return await getattr(self.trainers[name], method)(*args, **kwargs)

    async def look(self, name: str, what: str) -> Any:
        """Internal state of a trainer, for tests."""
        return LOOKS[what](self.trainers[name])

    async def drop(self, name: str) -> None:
        del self.trainers[name]


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


def _hold(trainer: FsdpTrainer) -> None:
    """Block background saves."""
    HELD[trainer] = threading.Event()
    trainer._saver.background.pool.submit(HELD[trainer].wait)


def _dtypes_by_name(trainer: FsdpTrainer) -> dict[str, str]:
    return {name: str(parameter.dtype) for name, parameter in trainer.decoder.named_parameters()}


LOOKS: dict[str, Any] = {
    "dtypes_by_name": _dtypes_by_name,
    "local_sizes": _local_sizes,
    "held": _numbers_held,
    "rotations": _rotations,
    "dtypes": _dtypes,
    "hold": _hold,
    "let go": lambda trainer: HELD.pop(trainer).set(),
}
HELD: dict[FsdpTrainer, threading.Event] = {}


def _serve(rank: int, wire: Connection) -> None:
    """Run requests one after the other until the connection closes."""
    worker = RankWorker(rank)
    while True:
        method, args, kwargs = wire.recv()
        try:
            wire.send((True, asyncio.run(getattr(worker, method)(*args, **kwargs))))
        except Exception as error:  # noqa: BLE001 - whatever it is, the test shall see it
            wire.send((False, error))


class Nursery:
    """A process that has imported everything, and all ranks as its children: imports would take most of the time."""

    def __init__(self, rank: int) -> None:
        if find_spec("deepspeed") is not None:
            os.environ["DS_ACCELERATOR"] = "cpu"
            importlib.import_module("deepspeed")
        fork = multiprocessing.get_context("fork")
        self._wires: list[Connection] = []
        for child in range(_RANKS):
            ours, theirs = fork.Pipe()
            fork.Process(target=_serve, args=(child, theirs), daemon=True).start()
            self._wires.append(ours)

    async def all(self, size: int, method: str, *args: Any, **kwargs: Any) -> list[Any]:
        """The results of this many ranks; raises the first error once all of them have replied."""
        calls = [asyncio.to_thread(self._one, wire, (method, args, kwargs)) for wire in self._wires[:size]]
        replies = await asyncio.gather(*calls)  # a reply left on its wire would be taken for that of the next call
        for fine, result in replies:
            if not fine:
                raise result
        return [result for _, result in replies]

    def _one(self, wire: Connection, message: Any) -> Any:
        wire.send(message)
        return wire.recv()


class Team:
    """The ranks, and an event loop to call them."""

    def __init__(self) -> None:
        self.runner = asyncio.Runner()
        self.folder = Path(tempfile.mkdtemp(prefix="roll-fsdp-"))
        self._host: ProcessWorker[Nursery] | None = None
        self._layout: ParallelLayout | None = None

    def run(self, coroutine: Any) -> Any:
        return self.runner.run(coroutine)

    def trainer(self, spec: TrainerSpec) -> ShardedTrainer:
        return ShardedTrainer(self, spec)

    async def ask(self, size: int, method: Any, *args: Any, **kwargs: Any) -> list[Any]:
        if self._host is None:
            self._host = await ProcessWorker.start(Spec("tests.engines.fsdp_team:Nursery"), 0, name="ranks")
        async with asyncio.timeout(120):
            return await self._host.call(Nursery.all, size, method.__name__, *args, **kwargs)

    def layout(self, spec: TrainerSpec) -> ParallelLayout:
        """The current layout of the processes, or a new one if the spec differs."""
        fresh = f"file://{self.folder}/{uuid.uuid4().hex}"
        layout = spec.layout(fresh)
        if self._layout is None or replace(layout, url=self._layout.url) != self._layout:
            self._layout = layout
        return self._layout

    def close(self) -> None:
        async def end() -> None:
            if self._host is not None:
                self._host.kill("the tests are over")

        self.runner.run(end())
        self.runner.close()
        shutil.rmtree(self.folder)


class ShardedTrainer:
    """`Trainer` over all ranks, which must return the same results."""

    def __init__(self, team: Team, spec: TrainerSpec) -> None:
        self.team, self.spec, self.name = team, spec, uuid.uuid4().hex

    async def start(self) -> None:
        await self.team.ask(self.spec.size, RankWorker.make, self.name, self.spec, self.team.layout(self.spec))
        await self._same("start")

    async def stop(self) -> None:
        await self._same("stop")
        await self.team.ask(self.spec.size, RankWorker.drop, self.name)

    async def logprobs(self, batch: Batch, *, sampling: Sampling | None = None) -> torch.Tensor:
        return await self._same("logprobs", batch, sampling=sampling)

    async def base_logprobs(self, batch: Batch) -> torch.Tensor:
        return await self._same("base_logprobs", batch)

    async def logprobs_and_entropies(self, batch: Batch) -> torch.Tensor:
        return await self._same("logprobs_and_entropies", batch)

    async def values(self, batch: Batch) -> torch.Tensor:
        return await self._same("values", batch)

    async def update(self, batch: Batch, objective: Objective) -> dict[str, float]:
        return await self._same("update", batch, objective)

    async def send(self, version: int) -> Digest:
        return await self._same("send", version)

    async def save(self, path: Path, *, resumable: bool = True, wait: bool = True) -> None:
        await self._same("save", path, resumable=resumable, wait=wait)

    async def save_completed(self) -> bool:
        return await self._same("save_completed")

    async def load(self, path: Path) -> None:
        await self._same("load", path)

    async def offload(self, parts: Sequence[str]) -> None:
        await self._same("offload", parts)

    async def onload(self, parts: Sequence[str]) -> None:
        await self._same("onload", parts)

    async def look(self, what: str) -> list[Any]:
        return await self.team.ask(self.spec.size, RankWorker.look, self.name, what)

    async def _same(self, method: str, *args: Any, **kwargs: Any) -> Any:
        first, *others = await self.team.ask(self.spec.size, RankWorker.call, self.name, method, *args, **kwargs)
        for other in others:
            same = torch.equal(first, other) if isinstance(first, torch.Tensor) else repr(first) == repr(other)
            assert same, f"ranks differ after {method}: {first} and {other}"
        return first


def written(decoder: Decoder | HuggingFaceDecoder, path: Path) -> Path:
    """The model as a directory."""
    write_model(path, decoder.config, dict(decoder.named_tensors()))
    return path


def alone(spec: TrainerSpec, decoder: Decoder | HuggingFaceDecoder) -> NativeTrainer:
    """The same trainer in this process."""
    return NativeTrainer(decoder, spec.settings(), Shared())
