"""Durable state of a run: checkpoints, batches of refused updates, the exported model."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch

from roll.algorithms.credit import AlgorithmState
from roll.checkpoint import Checkpoints, read_state, write_atomically, write_state
from roll.cluster.handle import Cluster
from roll.engines.base import AsyncSaver, Trainer
from roll.errors import ConfigError
from roll.journal.events import CheckpointSaved
from roll.journal.store import Journal
from roll.rollout.inflight import SchedulerState
from roll.rollout.resume import CheckpointState
from roll.types import Batch

_CRITIC = "critic"
_POLL_S = 0.2
"""Seconds between two checks whether an asynchronous save is written."""


def policy_folder(path: Path, policy: str) -> Path:
    """The folder of a policy in a checkpoint or exported model. A run with one policy names it "": no subfolder."""
    return path / "policies" / policy if policy else path


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpointer:
    """Writes and reads the durable state of one run."""

    directory: Path
    """The run directory."""
    checkpoints: Checkpoints
    trainers: Mapping[str, Cluster[Trainer]]
    """By policy."""
    critic: Cluster[Trainer] | None
    journal: Journal
    tokenizer: Any
    best: str
    """The metric whose highest value marks the best checkpoint."""
    async_save: bool = False
    """Whether trainers are `AsyncSaver`: a save returns once they hold a copy, and is written during later steps."""
    _writing: list[asyncio.Task[None]] = field(default_factory=list[asyncio.Task[None]])
    """The asynchronous save in progress."""

    async def save(
        self,
        step: int,
        scheduler: SchedulerState,
        algorithm: Mapping[str, AlgorithmState],
        metrics: Mapping[str, float],
    ) -> None:
        """Write a checkpoint from which a resumed run continues exactly; it appears complete or not at all."""
        state = CheckpointState(
            step=step,
            journal=self.journal.position(),  # that of `scheduler`: nothing may be awaited before this
            scheduler=scheduler,
            algorithm=dict(algorithm),
            metrics={name: value for name, value in metrics.items() if math.isfinite(value)},
        )
        await self.finish()
        copied = asyncio.Event()

        async def write() -> None:
            path = await self.checkpoints.write(step, partial(self._fill, state, copied), score=metrics.get(self.best))
            self.journal.record(CheckpointSaved(step=step, path=str(path.relative_to(self.directory))))
            self.journal.flush(durable=True)

        if not self.async_save:
            return await write()
        self._writing.append(asyncio.create_task(write()))
        copying = asyncio.create_task(copied.wait())
        await asyncio.wait((copying, *self._writing), return_when=asyncio.FIRST_COMPLETED)
        copying.cancel()
        if not copied.is_set():  # it failed before there was a copy
            await self.finish()

    async def _fill(self, state: CheckpointState, copied: asyncio.Event, path: Path) -> None:
        for name, trainers in self.trainers.items():
            folder = policy_folder(path, name)
            if self.async_save:
                await trainers.at(0, AsyncSaver.save, folder, wait=False)
            else:
                await trainers.at(0, Trainer.save, folder)
            self.tokenizer.save_pretrained(folder)
        if self.critic is not None:
            await self.critic.at(0, Trainer.save, path / _CRITIC)
        write_state(path, msgspec.to_builtins(state))
        copied.set()
        if self.async_save:
            for trainers in self.trainers.values():
                while not await trainers.at(0, AsyncSaver.save_completed):
                    await asyncio.sleep(_POLL_S)

    async def finish(self) -> None:
        """Wait for the asynchronous save in progress, and raise its error if it failed."""
        while self._writing:
            await self._writing.pop()

    async def restore(self) -> CheckpointState:
        """Load the newest checkpoint into the trainers; the rest of its state."""
        self.checkpoints.recover()
        path = self.checkpoints.latest()
        if path is None:
            raise ConfigError(
                f"{self.directory}: no checkpoint to resume from; start again with `roll train ... --overwrite`"
            )
        state = msgspec.convert(read_state(path), CheckpointState)
        for name, trainers in self.trainers.items():
            await trainers.each(Trainer.load, policy_folder(path, name))
        if self.critic is not None:
            await self.critic.each(Trainer.load, path / _CRITIC)
        return state

    async def export(self, name: str = "model") -> Path:
        """Write the current model as a Hugging Face directory, one subfolder per policy where there are several."""

        async def fill(path: Path) -> None:
            for policy, trainers in self.trainers.items():
                folder = policy_folder(path, policy)
                await trainers.at(0, Trainer.save, folder, resumable=False)
                self.tokenizer.save_pretrained(folder)

        path = self.directory / name
        await write_atomically(path, fill)
        return path

    def save_refused_batch(self, step: int, batch: Batch, policy: str = "") -> Path:
        """Write a batch with a non-finite update, for analysis with `torch.load`."""
        path = self.directory / "refused" / f"step-{step}{policy and f'-{policy}'}.pt"
        path.parent.mkdir(exist_ok=True)
        torch.save({field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}, path)
        return path
