"""What a run leaves on disk and finds again: checkpoints, refused batches, the exported model."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import torch

from roll.algorithms.credit import Memory
from roll.checkpoint import Checkpoints, read_state, write_state, write_whole
from roll.cluster.handle import Cluster
from roll.engines.base import Trainer, Unhurried
from roll.errors import ConfigError
from roll.journal.events import Checkpointed
from roll.journal.store import Journal
from roll.types import Batch

_CRITIC = "critic"
_LOOK_S = 0.2
"""Between two looks at whether something is written."""


def folder_of(checkpoint: Path, policy: str) -> Path:
    """Where a checkpoint, or an exported model, has one of several policies."""
    return checkpoint / "policies" / policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeper:
    """Writes and reads the durable state of one run."""

    directory: Path
    """Of the run."""
    checkpoints: Checkpoints
    trainers: Cluster[Trainer]
    critic: Cluster[Trainer] | None
    journal: Journal
    tokenizer: Any
    best: str
    """The metric whose highest value marks the best checkpoint."""
    policies: Mapping[str, Cluster[Trainer]] = field(default_factory=dict[str, Cluster[Trainer]])
    """Trainers by policy, where a run has several: each is kept in a folder of its own. Empty: there is one."""
    aside: bool = False
    """Whether trainers are `Unhurried`: a save returns once they have a copy, and goes on beside the next steps."""
    _writing: list[asyncio.Task[None]] = field(default_factory=list[asyncio.Task[None]])
    """The save that is under way."""

    async def save(self, step: int, rollout: dict[str, Any], memory: Memory, metrics: Mapping[str, float]) -> None:
        """A checkpoint from which `restore` goes on exactly; it appears whole or not at all."""
        await self.finish()
        position = self.journal.position()  # what `rollout` contains
        held = asyncio.Event()

        async def fill(path: Path) -> None:
            for folder, trainers in self._kept(path):
                await (trainers.at(0, Unhurried.save, folder, wait=False) if self.aside else _saved(trainers, folder))
                self.tokenizer.save_pretrained(folder)
            if self.critic is not None:
                await _saved(self.critic, path / _CRITIC)
            state = {"step": step, "rollout": rollout, "memory": dataclasses.asdict(memory)}
            write_state(path, {**state, "journal": position})
            held.set()
            while self.aside and not await self.trainers.at(0, Unhurried.written):
                await asyncio.sleep(_LOOK_S)

        async def write() -> None:
            path = await self.checkpoints.write(step, fill, score=metrics.get(self.best))
            self.journal.record(Checkpointed(step=step, path=str(path.relative_to(self.directory))))
            self.journal.flush(durable=True)

        if not self.aside:
            return await write()
        self._writing.append(asyncio.create_task(write()))
        holding = asyncio.create_task(held.wait())
        await asyncio.wait((holding, *self._writing), return_when=asyncio.FIRST_COMPLETED)
        holding.cancel()
        if not held.is_set():  # it failed before there was a copy
            await self.finish()

    async def finish(self) -> None:
        """Wait for the save that is under way, and raise what went wrong with it."""
        while self._writing:
            await self._writing.pop()

    async def restore(self) -> tuple[dict[str, Any], Memory]:
        """Bring the trainers back to the newest checkpoint: where the rollout stood, and what was remembered."""
        self.checkpoints.recover()
        path = self.checkpoints.latest()
        if path is None:
            raise ConfigError(
                f"{self.directory}: no checkpoint to resume from; start again with `roll train ... --overwrite`"
            )
        state = read_state(path)
        for folder, trainers in self._kept(path):
            await trainers.each(Trainer.load, folder)
        if self.critic is not None:
            await self.critic.each(Trainer.load, path / _CRITIC)
        about = {**state["rollout"], "step": state["step"], "journal": state["journal"]}
        return about, msgspec.convert(state["memory"], Memory)

    async def export(self, name: str = "model") -> Path:
        """The model as it is now, as a Hugging Face directory; of several policies, one for each."""

        async def fill(path: Path) -> None:
            for folder, trainers in self._kept(path):
                await trainers.at(0, Trainer.save, folder, resumable=False)
                self.tokenizer.save_pretrained(folder)

        path = self.directory / name
        await write_whole(path, fill)
        return path

    def _kept(self, path: Path) -> list[tuple[Path, Cluster[Trainer]]]:
        """Every trainer, and where in a checkpoint it is kept."""
        named = [(folder_of(path, name), trainers) for name, trainers in self.policies.items()]
        return named or [(path, self.trainers)]

    def save_refused(self, step: int, batch: Batch, policy: str = "") -> Path:
        """A batch whose update was not finite, for a post-mortem with `torch.load`."""
        path = self.directory / "refused" / f"step-{step}{policy and f'-{policy}'}.pt"
        path.parent.mkdir(exist_ok=True)
        torch.save({field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}, path)
        return path


async def _saved(trainers: Cluster[Trainer], folder: Path) -> None:
    await trainers.at(0, Trainer.save, folder)
