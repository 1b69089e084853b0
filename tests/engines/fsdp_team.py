"""Ranks for the tests of the FSDP trainer: real processes, made once, each with any trainer that a test wants."""

from __future__ import annotations

import asyncio
import multiprocessing
import shutil
import tempfile
import threading
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from roll.algorithms.recipe import Objective
from roll.cluster.host import Host
from roll.config.lora import Lora
from roll.config.schema import Model, Optimizer
from roll.engines.fsdp.ranks import Ranks, Spread
from roll.engines.fsdp.trainer import FsdpTrainer
from roll.engines.native.decoder import Decoder
from roll.engines.native.mixed import Reading
from roll.engines.native.model_spec import Head, Origin
from roll.engines.native.trainer import NativeTrainer, Settings
from roll.registry import CHANNELS
from roll.types import Batch, Call, Digest, Sampling
from roll.weights.huggingface import write_model
from roll.weights.inline import Shared
from roll.weights.plan import Plan

_RANKS = 4
CPU = torch.device("cpu")
ADAMW, PLAIN = Optimizer(lr=1e-2), Reading()
SGD = Optimizer(kind="sgd", lr=1.0, clip_norm=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A trainer and how it is spread; `url` of the spread is the team's to fill in."""

    path: Path
    """Of the model."""
    size: int = 2
    tp: int = 1
    cp: int = 1
    offload: bool = False
    budget: int = 4096
    optimizer: Optimizer = ADAMW
    reading: Reading = PLAIN
    sampling_of: dict[str, Sampling] = field(default_factory=dict[str, Sampling])
    channel: Call | None = None
    head: Head = "logits"
    lora: Lora | None = None

    def settings(self) -> Settings:
        return Settings(
            optimizer=self.optimizer,
            total_steps=100,
            tokens_per_microbatch=self.budget,
            sampling=Sampling(),
            sampling_of=self.sampling_of,
            device=CPU,
            reading=self.reading,
        )

    def origin(self) -> Origin:
        return Origin(model=Model(path=str(self.path)), head=self.head, lora=self.lora)


class _Kept(Ranks):
    """Ranks that stay together when a trainer stops: to meet anew for every one would take most of the time."""

    def leave(self) -> None:
        pass


class RankWorker:
    """What lives in one of the processes."""

    def __init__(self, rank: int) -> None:
        torch.set_num_threads(1)
        self.rank = rank
        self.ranks: _Kept | None = None
        self.trainers: dict[str, FsdpTrainer] = {}

    async def make(self, name: str, wanted: Wanted, spread: Spread) -> None:
        if self.ranks is None or self.ranks.spread != spread:
            if dist.is_initialized():
                dist.destroy_process_group()
            self.ranks = _Kept(spread, self.rank)
        channel = wanted.channel
        made = CHANNELS[channel.name](0, **channel.arguments) if channel and self.rank == 0 else Shared()
        self.trainers[name] = FsdpTrainer(wanted.origin(), wanted.settings(), self.ranks, made)

    async def call(self, name: str, method: str, *args: Any, **kwargs: Any) -> Any:
        return await getattr(self.trainers[name], method)(*args, **kwargs)

    async def look(self, name: str, what: str) -> Any:
        """Something of a trainer that is nobody's business but a test's."""
        return LOOKS[what](self.trainers[name])

    async def drop(self, name: str) -> None:
        del self.trainers[name]


def _local_sizes(trainer: FsdpTrainer) -> dict[str, int]:
    return {name: p.to_local().numel() for name, p in trainer.decoder.named_parameters()}


def _rotations(trainer: FsdpTrainer) -> Any:
    return trainer.decoder.rotations


def _dtypes(trainer: FsdpTrainer) -> set[str]:
    moments = [state["exp_avg"] for state in trainer._optimizer.state.values()]
    return {str(tensor.dtype) for tensor in (*trainer.decoder.parameters(), *moments)}


def _hold(trainer: FsdpTrainer) -> None:
    """Let nothing be written behind the ranks' backs."""
    HELD[trainer] = threading.Event()
    trainer._writing.pool.submit(HELD[trainer].wait)


def _dtypes_by_name(trainer: FsdpTrainer) -> dict[str, str]:
    return {name: str(parameter.dtype) for name, parameter in trainer.decoder.named_parameters()}


LOOKS: dict[str, Any] = {
    "dtypes_by_name": _dtypes_by_name,
    "local_sizes": _local_sizes,
    "rotations": _rotations,
    "dtypes": _dtypes,
    "hold": _hold,
    "let go": lambda trainer: HELD.pop(trainer).set(),
}
HELD: dict[FsdpTrainer, threading.Event] = {}


def _serve(rank: int, wire: Connection) -> None:
    """Do what is asked, one thing after the other, for as long as anybody asks."""
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
        fork = multiprocessing.get_context("fork")
        self._wires: list[Connection] = []
        for child in range(_RANKS):
            ours, theirs = fork.Pipe()
            fork.Process(target=_serve, args=(child, theirs), daemon=True).start()
            self._wires.append(ours)

    async def all(self, size: int, method: str, *args: Any, **kwargs: Any) -> list[Any]:
        """What each of so many ranks says."""
        asked = [asyncio.to_thread(self._one, wire, (method, args, kwargs)) for wire in self._wires[:size]]
        return list(await asyncio.gather(*asked))

    def _one(self, wire: Connection, message: Any) -> Any:
        wire.send(message)
        fine, found = wire.recv()
        if not fine:
            raise found
        return found


class Team:
    """The ranks, and an event loop to talk to them."""

    def __init__(self) -> None:
        self.runner = asyncio.Runner()
        self.folder = Path(tempfile.mkdtemp(prefix="roll-fsdp-"))
        self._host: Host[Nursery] | None = None
        self._spread: Spread | None = None

    def run(self, coroutine: Any) -> Any:
        return self.runner.run(coroutine)

    def trainer(self, wanted: Wanted) -> SpreadTrainer:
        return SpreadTrainer(self, wanted)

    async def ask(self, size: int, method: Any, *args: Any, **kwargs: Any) -> list[Any]:
        if self._host is None:
            self._host = await Host.open(Call("tests.engines.fsdp_team:Nursery"), 0, name="ranks")
        async with asyncio.timeout(120):
            return await self._host.ask(Nursery.all, size, method.__name__, *args, **kwargs)

    def spread(self, wanted: Wanted) -> Spread:
        """The one that the processes are part of, or another where they should be."""
        fresh = f"file://{self.folder}/{uuid.uuid4().hex}"
        asked = Spread(url=fresh, size=wanted.size, tp=wanted.tp, cp=wanted.cp, offload=wanted.offload, timeout_s=120)
        if self._spread is None or replace(asked, url=self._spread.url) != self._spread:
            self._spread = asked
        return self._spread

    def close(self) -> None:
        async def end() -> None:
            if self._host is not None:
                self._host.kill("the tests are over")

        self.runner.run(end())
        self.runner.close()
        shutil.rmtree(self.folder)


class SpreadTrainer:
    """`Trainer` that is all ranks, which must give the same answers."""

    def __init__(self, team: Team, wanted: Wanted) -> None:
        self.team, self.wanted, self.name = team, wanted, uuid.uuid4().hex

    async def start(self) -> None:
        await self.team.ask(self.wanted.size, RankWorker.make, self.name, self.wanted, self.team.spread(self.wanted))
        await self._same("start")

    async def stop(self) -> None:
        await self._same("stop")
        await self.team.ask(self.wanted.size, RankWorker.drop, self.name)

    async def logprobs(self, batch: Batch, *, sampling: Sampling | None = None) -> torch.Tensor:
        return await self._same("logprobs", batch, sampling=sampling)

    async def base_logprobs(self, batch: Batch) -> torch.Tensor:
        return await self._same("base_logprobs", batch)

    async def values(self, batch: Batch) -> torch.Tensor:
        return await self._same("values", batch)

    async def update(self, batch: Batch, objective: Objective) -> dict[str, float]:
        return await self._same("update", batch, objective)

    async def send(self, plan: Plan, version: int) -> Digest:
        return await self._same("send", plan, version)

    async def save(self, path: Path, *, resumable: bool = True, wait: bool = True) -> None:
        await self._same("save", path, resumable=resumable, wait=wait)

    async def written(self) -> bool:
        return await self._same("written")

    async def load(self, path: Path) -> None:
        await self._same("load", path)

    async def offload(self, parts: Sequence[str]) -> None:
        await self._same("offload", parts)

    async def onload(self, parts: Sequence[str]) -> None:
        await self._same("onload", parts)

    async def look(self, what: str) -> list[Any]:
        return await self.team.ask(self.wanted.size, RankWorker.look, self.name, what)

    async def _same(self, method: str, *args: Any, **kwargs: Any) -> Any:
        first, *others = await self.team.ask(self.wanted.size, RankWorker.call, self.name, method, *args, **kwargs)
        for other in others:
            same = torch.equal(first, other) if isinstance(first, torch.Tensor) else repr(first) == repr(other)
            assert same, f"ranks differ after {method}: {first} and {other}"
        return first


def written(decoder: Decoder, path: Path) -> Path:
    """The model as a directory."""
    write_model(path, decoder.config, dict(decoder.named_tensors()))
    return path


def alone(wanted: Wanted, decoder: Decoder) -> NativeTrainer:
    """The same trainer in this process."""
    return NativeTrainer(decoder, wanted.settings(), Shared())
