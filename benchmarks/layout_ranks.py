"""Processes that hold the ranks of Megatron trainers, started once: imports would take most of the time."""

from __future__ import annotations

import asyncio
import importlib
import multiprocessing
import shutil
import tempfile
import threading
import traceback
import uuid
from collections.abc import Coroutine
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from roll.algorithms.recipe import Objective
from roll.cluster.process import ProcessWorker
from roll.config.router_losses import RouterLosses
from roll.config.schema import Model, Optimizer
from roll.engines.megatron.ranks import MegatronLayout, MegatronRanks, parallel_state
from roll.engines.megatron.trainer import MegatronTrainer
from roll.engines.native.mixed import Precision
from roll.engines.native.model_spec import ModelSpec
from roll.engines.native.trainer import NativeTrainerSettings
from roll.errors import ConfigError
from roll.registry import CHANNELS
from roll.types import Batch, Sampling, Spec
from roll.weights.channel import Shared
from roll.weights.digest import Digest

_NUM = 4
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
        return ModelSpec(model=Model(path=str(self.path)), engine="hf")


class _Rank:
    """The worker in each process."""

    def __init__(self, rank: int) -> None:
        torch.set_num_threads(1)
        self.rank, self.trainers = rank, dict[str, MegatronTrainer]()
        self._held = threading.Event()

    async def make(self, name: str, case: LayoutCase) -> None:
        channel = case.channel
        end = CHANNELS[channel.name](0, **channel.kwargs) if channel and self.rank == 0 else Shared()
        self.trainers[name] = MegatronTrainer(
            case.model_spec, case.settings, MegatronRanks(case.layout, self.rank), end
        )

    async def call(self, name: str, method: str, *args: Any, **kwargs: Any) -> Any:
        return await getattr(self.trainers[name], method)(*args, **kwargs)

    async def hold(self, name: str) -> None:
        """Let no background save begin before `release`."""
        self._held = threading.Event()
        self.trainers[name]._saver.background.pool.submit(self._held.wait)

    async def release(self, name: str) -> None:
        self._held.set()

    async def drop(self, name: str) -> None:
        del self.trainers[name]


def _serve(rank: int, wire: Connection) -> None:
    worker = _Rank(rank)
    while True:
        method, args, kwargs = wire.recv()
        try:
            wire.send((True, asyncio.run(getattr(worker, method)(*args, **kwargs))))
        except Exception as error:  # noqa: BLE001 - the caller raises it
            wire.send((False, error if isinstance(error, ConfigError) else RuntimeError(traceback.format_exc())))


class RankHost:
    """A process that has imported everything, and all ranks as its children."""

    def __init__(self, rank: int) -> None:
        parallel_state()
        for module in _IMPORTED:
            importlib.import_module(module)
        fork = multiprocessing.get_context("fork")
        self._wires: list[Connection] = []
        for child in range(_NUM):
            ours, theirs = fork.Pipe()
            fork.Process(target=_serve, args=(child, theirs), daemon=True).start()
            self._wires.append(ours)

    async def all(self, size: int, method: str, *args: Any, **kwargs: Any) -> list[Any]:
        """The results of this many ranks; raises the first error once all of them have replied."""
        calls = [asyncio.to_thread(self._one, wire, (method, args, kwargs)) for wire in self._wires[:size]]
        replies = await asyncio.gather(*calls)
        for fine, result in replies:
            if not fine:
                raise result
        return [result for _, result in replies]

    def _one(self, wire: Connection, message: Any) -> Any:
        wire.send(message)
        return wire.recv()


class RankProcesses:
    """The processes, and an event loop to call them."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self.folder = Path(tempfile.mkdtemp(prefix="roll-megatron-"))
        self._host: ProcessWorker[RankHost] | None = None

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(coroutine)

    def trainer(self, case: LayoutCase) -> LayoutTrainer:
        return LayoutTrainer(self, case)

    async def ask(self, size: int, method: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Call a method of the workers of the first ranks."""
        if self._host is None:
            self._host = await ProcessWorker.start(Spec("benchmarks.layout_ranks:RankHost"), 0, name="ranks")
        try:
            async with asyncio.timeout(_LIMIT_S):
                return await self._host.call(RankHost.all, size, method, *args, **kwargs)
        except TimeoutError:
            self.kill()
            raise

    def kill(self) -> None:
        """End all processes; the next call starts new ones."""
        if self._host is not None:
            self._host.kill("the layouts are checked")
            self._host = None

    def close(self) -> None:
        async def end() -> None:
            self.kill()

        self._runner.run(end())
        self._runner.close()
        shutil.rmtree(self.folder)


class LayoutTrainer:
    """`Trainer` over all ranks, which must return the same results."""

    def __init__(self, processes: RankProcesses, case: LayoutCase) -> None:
        self._processes, self._name = processes, uuid.uuid4().hex
        url = f"file://{processes.folder}/{self._name}"
        self.case = replace(case, layout=replace(case.layout, url=url, timeout_s=_LIMIT_S))

    async def start(self) -> None:
        await self._processes.ask(self.case.layout.size, "make", self._name, self.case)
        await self._same("start")

    async def stop(self) -> None:
        await self._same("stop")
        await self._processes.ask(self.case.layout.size, "drop", self._name)

    async def logprobs(self, batch: Batch, *, sampling: Sampling | None = None) -> torch.Tensor:
        return await self._same("logprobs", batch, sampling=sampling)

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
        """Whether the last save without `wait` is on disk."""
        return await self._same("save_completed")

    async def hold(self) -> None:
        """Let no background save begin before `release`."""
        await self._processes.ask(self.case.layout.size, "hold", self._name)

    async def release(self) -> None:
        """The opposite of `hold`."""
        await self._processes.ask(self.case.layout.size, "release", self._name)

    async def load(self, path: Path) -> None:
        await self._same("load", path)

    async def _same(self, method: str, *args: Any, **kwargs: Any) -> Any:
        size = self.case.layout.size
        first, *others = await self._processes.ask(size, "call", self._name, method, *args, **kwargs)
        for other in others:
            same = torch.equal(first, other) if isinstance(first, torch.Tensor) else repr(first) == repr(other)
            assert same, f"ranks differ after {method}: {first} and {other}"
        return first
