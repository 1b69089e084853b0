"""Durable state of a run: checkpoints, and the exported model."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from roll.algorithms.credit import AlgorithmState
from roll.checkpoint import Checkpoints, IntactCheckpoint, WriteFailed, write_atomically, write_state
from roll.cluster.handle import Cluster
from roll.engines.base import AsyncSaver, Trainer
from roll.errors import ConfigError, RollError, StateLost
from roll.journal.events import CheckpointSaved
from roll.journal.store import Journal
from roll.pipelines.model_folder import policy_folder, trainer_folders, write_companions
from roll.rollout.inflight import SchedulerState
from roll.rollout.resume import CheckpointState, read_checkpoint
from roll.serving.recovery import RecoveringCluster
from roll.tracking.log import announce

_LOG = logging.getLogger(__name__)
_POLL_S = 0.2
"""Seconds between two checks whether an asynchronous save is written."""


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
    """Whether trainers are `AsyncSaver`, which copy their state first and write it during later steps."""
    every: int = 0
    """Steps between two checkpoints; 0: the number of steps makes none due."""
    every_s: float = math.inf
    """Seconds after which the next finished step is saved, regardless of `every`."""
    on_saved: Sequence[Callable[[int, Path], None]] = ()
    """Callbacks with the step and the folder of a checkpoint that is complete."""
    clock: Callable[[], float] = time.monotonic
    _saved_s: float = field(init=False)
    """Time of the last checkpoint; of the start before the first."""
    _writing: asyncio.Task[None] | None = None
    """The save in progress."""
    _filled: bool = False
    """Whether all files of the save in progress are written, but not yet synced and renamed."""
    _failure: WriteFailed | None = None
    """Why the last checkpoint could not be written."""

    def __post_init__(self) -> None:
        self._saved_s = self.clock()

    def due(self, step: int) -> bool:
        """Whether a checkpoint is to be written at the end of this step; raises an error of the save in progress."""
        if self._writing is not None and self._writing.done():
            self._writing.result()
        return (self.every > 0 and step % self.every == 0) or self.clock() - self._saved_s >= self.every_s

    async def save(
        self,
        step: int,
        scheduler: SchedulerState,
        algorithm: Mapping[str, AlgorithmState],
        metrics: Mapping[str, float],
    ) -> None:
        """Write a checkpoint from which a resumed run continues exactly, partly in the background."""
        state = CheckpointState(
            step=step,
            journal=self.journal.position(),  # that of `scheduler`: nothing may be awaited before this
            began=self.journal.began(),
            scheduler=scheduler,
            algorithm=dict(algorithm),
            metrics={name: value for name, value in metrics.items() if math.isfinite(value)},
        )
        self._saved_s = self.clock()
        await self._await_write()
        copied, self._filled = asyncio.Event(), False
        self._writing = asyncio.create_task(self._write(state, copied, metrics.get(self.best)))
        copying = asyncio.create_task(copied.wait())
        await asyncio.wait((copying, self._writing), return_when=asyncio.FIRST_COMPLETED)
        copying.cancel()
        if not copied.is_set():  # it failed before there was a copy
            await self._await_write()

    async def _write(self, state: CheckpointState, copied: asyncio.Event, score: float | None) -> None:
        try:
            path = await self.checkpoints.write(state.step, partial(self._fill, state, copied), score=score)
        except WriteFailed as failure:
            self._failure = failure
            announce(f"{failure.what}; the run continues and tries again later; {failure.fix}", logging.WARNING)
            return
        except StateLost as error:
            if not any(cluster.changed for cluster in self._recovering(self.directory).values()):
                return await self._write(state, copied, score)
            _LOG.warning("the checkpoint of step %d is lost, the next one follows: %s", state.step, error.what)
            return
        self._failure = None
        for folder, cluster in self._recovering(path).items():
            cluster.saved(folder)  # lost trainers are restored from it from now on
        self.journal.record(CheckpointSaved(step=state.step, path=str(path.relative_to(self.directory))))
        self.journal.flush(durable=True)
        _LOG.info("checkpoint of step %d: %s", state.step, path)
        for callback in self.on_saved:
            callback(state.step, path)

    async def _fill(self, state: CheckpointState, copied: asyncio.Event, path: Path) -> None:
        for name, trainers in self.trainers.items():
            folder = policy_folder(path, name)
            if self.async_save:
                await trainers.at(0, AsyncSaver.save, folder, wait=False)
            else:
                await trainers.at(0, Trainer.save, folder)
            write_companions(folder, self.tokenizer, self.origins.get(name))
        if self.critic is not None:
            await self.critic.at(0, Trainer.save, path / "critic")
        write_state(path, msgspec.to_builtins(state))
        copied.set()
        if self.async_save:
            for trainers in self.trainers.values():
                while not await trainers.at(0, AsyncSaver.save_completed):
                    await asyncio.sleep(_POLL_S)
        self._filled = True

    async def _await_write(self) -> None:
        writing, self._writing = self._writing, None
        if writing is not None:
            await writing

    def _recovering(self, path: Path) -> dict[Path, RecoveringCluster[Trainer]]:
        """The trainers that are replaced when they are lost, by their folders in a checkpoint."""
        folders = trainer_folders(path, self.trainers, self.critic)
        return {folder: each for folder, each in folders.items() if isinstance(each, RecoveringCluster)}

    async def finish(self) -> None:
        """Wait for the save in progress, and raise its error if the last checkpoint could not be written."""
        await self._await_write()
        if self._failure is not None:
            raise self._failure

    async def settle(self) -> None:
        """In a run that fails: complete a checkpoint whose files are all written."""
        if self._filled:
            with suppress(RollError):  # the run has an error already
                await self._await_write()

    def describe_wait(self) -> str:
        """The file operation that a save is waiting for."""
        return self.checkpoints.activity or "waiting for the trainers to write their state"

    async def restore(self, checkpoint: IntactCheckpoint | None = None) -> CheckpointState:
        """Load a checkpoint, by default the newest intact one, and rename damaged newer ones; the rest of its state."""
        self.checkpoints.recover()
        if (checkpoint := checkpoint or self.checkpoints.newest_intact()) is None:
            raise ConfigError(
                f"{self.directory}: no checkpoint to resume from; start again with `roll train ... --overwrite`"
            )
        path = checkpoint.path
        for note in checkpoint.notes:
            announce(note, logging.WARNING)
        announce(f"restoring the state of {path.name}")
        state = read_checkpoint(path)
        self.checkpoints.pinned = state.step if self._recovering(path) else None  # new processes are built from it
        for folder, trainers in trainer_folders(path, self.trainers, self.critic).items():
            await trainers.each(Trainer.load, folder)
        for damaged in checkpoint.damaged:
            announce(f"{damaged}: renamed to {self.checkpoints.set_aside(damaged).name}", logging.WARNING)
        return state

    async def export(self, name: str = "model") -> Path:
        """Write the current model as a Hugging Face directory, one subfolder per policy where there are several."""

        async def fill(path: Path) -> None:
            for policy, trainers in self.trainers.items():
                folder = policy_folder(path, policy)
                await trainers.at(0, Trainer.save, folder, resumable=False)
                write_companions(folder, self.tokenizer, self.origins.get(policy))

        path = self.directory / name
        await write_atomically(path, fill)
        return path
