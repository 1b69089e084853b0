"""Processes that load and publish one large model, and measure their own memory."""

from __future__ import annotations

import ctypes
import gc
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.rank_processes import RankHost, RankWorker
from roll.config.schema import Model, Optimizer
from roll.engines.fsdp.ranks import ParallelLayout, Ranks
from roll.engines.fsdp.trainer import FsdpTrainer
from roll.engines.native.model_spec import ModelSpec
from roll.engines.native.trainer import NativeTrainerSettings
from roll.types import Sampling
from roll.weights.broadcast import GlooChannel, gloo
from roll.weights.channel import Disk, Shared
from roll.weights.digest import Digest, combine, digest

NUM_RANKS = 2
_LIMIT_S = 1800.0
_M_MMAP_THRESHOLD = -3


@dataclass(frozen=True, slots=True, kw_only=True)
class BigModel:
    """A trainer of one backend over two ranks, and where its messages meet."""

    path: Path
    backend: str
    folder: Path
    """For rendezvous and publications; new for every case."""

    @property
    def meeting(self) -> str:
        return str(self.folder / "meeting")


@dataclass(frozen=True, slots=True)
class Measured:
    """A call in one process."""

    seconds: float
    peak: int
    """Most resident bytes during the call, above the process's baseline."""
    held: int
    """Resident bytes after it, above the baseline."""
    digest: Digest | None = None


class BigModelWorker(RankWorker):
    """Ranks 0 and 1 of a trainer, and a receiver of its weights."""

    _baseline = 0

    def __init__(self, rank: int) -> None:
        super().__init__(rank)
        self._libc = ctypes.CDLL(None)
        self._libc.mallopt(_M_MMAP_THRESHOLD, 2**20)  # otherwise glibc keeps freed tensors for later ones

    async def rest(self) -> None:
        """Return freed memory to the system; later measurements begin from what is left."""
        gc.collect()
        self._libc.malloc_trim(0)
        self._baseline = _status("VmRSS")

    async def load(self, case: BigModel) -> Measured:
        """Build the trainer and read its weights."""

        async def run() -> None:
            self.engines["it"] = _TRAINERS[case.backend](case, self.rank)
            await self.engines["it"].start()

        return await self._measured(run)

    async def publish(self, case: BigModel, transport: str, version: int) -> Measured:
        """Send the weights as the trainer, or receive them as the generator would, tensor by tensor."""

        async def send() -> Digest:
            self.engines["it"].channel = _channel(case, transport, sends=True)
            return await self.engines["it"].send(version)

        async def receive() -> Digest:
            received = _channel(case, transport, sends=False).receive(version=version)
            return combine(digest([each]) for _, each in received)  # each is valid until the next is read

        return await self._measured(send if self.rank < NUM_RANKS else receive)

    async def end(self) -> None:
        await self.engines.pop("it").stop()

    async def _measured(self, run: Callable[[], Any]) -> Measured:
        Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
        start = time.monotonic()
        result = await run()
        seconds = time.monotonic() - start
        peak, held = (_status(name) - self._baseline for name in ("VmHWM", "VmRSS"))
        return Measured(seconds, peak, held, result)


class BigModelHost(RankHost):
    """The ranks and the receiver."""

    worker = BigModelWorker


def _status(name: str) -> int:
    """Bytes of an entry of this process's status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) * 1024


def _channel(case: BigModel, transport: str, *, sends: bool) -> Disk | GlooChannel:
    if transport == "disk":
        return Disk(case.folder / "weights")
    return gloo(0, meeting=case.meeting, num_receivers=1, sends=sends)


def _settings() -> NativeTrainerSettings:
    return NativeTrainerSettings(
        optimizer=Optimizer(kind="sgd", lr=1.0),
        total_steps=1,
        tokens_per_microbatch=4096,
        sampling=Sampling(),
        device=torch.device("cpu"),
    )


def _model_spec(case: BigModel) -> ModelSpec:
    return ModelSpec(model=Model(path=str(case.path)))


def _layout(case: BigModel) -> dict[str, Any]:
    return {"url": f"file://{case.folder}/ranks", "size": NUM_RANKS, "timeout_s": _LIMIT_S}


def _fsdp2(case: BigModel, rank: int) -> Any:
    return FsdpTrainer(_model_spec(case), _settings(), Ranks(ParallelLayout(**_layout(case)), rank), Shared())


def _deepspeed(case: BigModel, rank: int) -> Any:
    os.environ["DS_ACCELERATOR"] = "cpu"
    from roll.engines.deepspeed.ranks import ZeroLayout, ZeroRanks
    from roll.engines.deepspeed.trainer import DeepspeedTrainer

    ranks = ZeroRanks(ZeroLayout(**_layout(case), stage=3), rank)
    return DeepspeedTrainer(_model_spec(case), _settings(), ranks, Shared())


def _megatron(case: BigModel, rank: int) -> Any:
    from roll.engines.megatron.ranks import MegatronLayout, MegatronRanks
    from roll.engines.megatron.trainer import MegatronTrainer

    ranks = MegatronRanks(MegatronLayout(**_layout(case), tp=NUM_RANKS), rank)
    return MegatronTrainer(_model_spec(case), _settings(), ranks, Shared())


_TRAINERS: dict[str, Callable[[BigModel, int], Any]] = {
    "fsdp2": _fsdp2,
    "deepspeed": _deepspeed,
    "megatron": _megatron,
}
