"""Durable state of a run: checkpoints, batches of refused updates, the exported model."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import math
import time
from collections.abc import Callable, Mapping
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
from roll.errors import ConfigError, StateLost
from roll.journal.events import CheckpointSaved
from roll.journal.store import Journal
from roll.rollout.inflight import SchedulerState
from roll.rollout.resume import CheckpointState
from roll.serving.recovery import RecoveringCluster
from roll.tracking.log import announce
from roll.types import Batch
from roll.weights.huggingface import copy_generation_config

_LOG = logging.getLogger(__name__)
_CRITIC = "critic"
_POLL_S = 0.2
"""Seconds between two checks whether an asynchronous save is written."""


def policy_folder(path: Path, policy: str) -> Path:
    """The folder of a policy in a checkpoint or exported model. A run with one policy names it "": no subfolder."""
    return path / "policies" / policy if policy else path


@dataclass(slots=True, kw_only=True)
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
    origins: Mapping[str, Path] = field(default_factory=dict[str, Path])
    """By policy: the model directory that it started from. A policy that started from random weights has none."""
    best: str
    """The metric whose highest value marks the best checkpoint."""
    async_save: bool = False
    """Whether trainers are `AsyncSaver`: a save returns once they hold a copy, and is written during later steps."""
    every: int = 0
    """Steps between two checkpoints; 0: the number of steps makes none due."""
    every_s: float = math.inf
    """Seconds after which the next finished step is saved, regardless of `every`."""
    on_saved: Callable[[int, Path], None] = lambda step, path: None
    """Callback with the step and the folder of a checkpoint that is complete."""
    clock: Callable[[], float] = time.monotonic
    _saved_s: float = field(init=False)
    """Time of the last checkpoint; of the start before the first."""
    _writing: list[asyncio.Task[None]] = field(default_factory=list[asyncio.Task[None]])
    """The asynchronous save in progress."""

    def __post_init__(self) -> None:
        self._saved_s = self.clock()

    def due(self, step: int) -> bool:
        """Whether a checkpoint is to be written at the end of this step."""
        by_steps = self.every > 0 and step % self.every == 0
        return by_steps or self.clock() - self._saved_s >= self.every_s

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
        self._saved_s = self.clock()
        await self.finish()
        copied = asyncio.Event()

        async def write() -> None:
            try:
                fill = partial(self._fill, state, copied)
                path = await self.checkpoints.write(step, fill, score=metrics.get(self.best))
            except StateLost as error:
                if not any(cluster.changed for cluster in self._recovering(self.directory).values()):
                    return await write()
                _LOG.warning("the checkpoint of step %d is lost, the next one follows: %s", step, error.what)
                return
            for folder, cluster in self._recovering(path).items():
                cluster.saved(folder)  # lost trainers are restored from it from now on
            self.journal.record(CheckpointSaved(step=step, path=str(path.relative_to(self.directory))))
            self.journal.flush(durable=True)
            _LOG.info("checkpoint of step %d: %s", step, path)
            self.on_saved(step, path)

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
            self._write_companions(name, folder)
        if self.critic is not None:
            await self.critic.at(0, Trainer.save, path / _CRITIC)
        write_state(path, msgspec.to_builtins(state))
        copied.set()
        if self.async_save:
            for trainers in self.trainers.values():
                while not await trainers.at(0, AsyncSaver.save_completed):
                    await asyncio.sleep(_POLL_S)

    def _recovering(self, path: Path) -> dict[Path, RecoveringCluster[Trainer]]:
        """The trainers that are replaced when they are lost, by their folders in a checkpoint."""
        folders = {policy_folder(path, name): cluster for name, cluster in self.trainers.items()}
        clusters = {**folders, path / _CRITIC: self.critic}
        return {folder: cluster for folder, cluster in clusters.items() if isinstance(cluster, RecoveringCluster)}

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
        announce(f"restoring the state of {path.name}")
        state = msgspec.convert(read_state(path), CheckpointState)
        self.checkpoints.pinned = state.step  # new processes are built from it
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
                self._write_companions(policy, folder)

        path = self.directory / name
        await write_atomically(path, fill)
        return path

    def _write_companions(self, policy: str, folder: Path) -> None:
        """Write the files of a model that its trainer does not have."""
        self.tokenizer.save_pretrained(folder)
        copy_generation_config(self.origins.get(policy), folder)

    def save_refused_batch(self, step: int, batch: Batch, policy: str = "") -> Path:
        """Write a batch with a non-finite update, for analysis with `torch.load`."""
        path = self.directory / "refused" / f"step-{step}{policy and f'-{policy}'}.pt"
        path.parent.mkdir(exist_ok=True)
        torch.save({field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}, path)
        return path
