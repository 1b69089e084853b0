"""What a run leaves on disk and finds again: checkpoints, refused batches, the exported model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

from roll.algorithms.credit import Memory
from roll.checkpoint import Checkpoints, read_state, write_state, write_whole
from roll.cluster.handle import Cluster
from roll.engines.base import Trainer
from roll.errors import ConfigError
from roll.journal.events import Checkpointed
from roll.journal.store import Journal
from roll.types import Batch

_CRITIC = "critic"


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

    async def save(self, step: int, rollout: dict[str, Any], memory: Memory, metrics: Mapping[str, float]) -> None:
        """A checkpoint from which `restore` goes on exactly; it appears whole or not at all."""

        async def fill(path: Path) -> None:
            await self.trainers.at(0, Trainer.save, path)
            self.tokenizer.save_pretrained(path)
            if self.critic is not None:
                await self.critic.at(0, Trainer.save, path / _CRITIC)
            state = {"step": step, "rollout": rollout, "memory": dataclasses.asdict(memory)}
            write_state(path, {**state, "journal": position})

        position = self.journal.position()  # what `rollout` contains

        path = await self.checkpoints.write(step, fill, score=metrics.get(self.best))
        self.journal.record(Checkpointed(step=step, path=str(path.relative_to(self.directory))))
        self.journal.flush(durable=True)

    async def restore(self) -> tuple[dict[str, Any], Memory]:
        """Bring the trainers back to the newest checkpoint: where the rollout stood, and what was remembered."""
        self.checkpoints.recover()
        path = self.checkpoints.latest()
        if path is None:
            raise ConfigError(
                f"{self.directory}: no checkpoint to resume from; start again with `roll train ... --overwrite`"
            )
        state = read_state(path)
        await self.trainers.each(Trainer.load, path)
        if self.critic is not None:
            await self.critic.each(Trainer.load, path / _CRITIC)
        about = {**state["rollout"], "step": state["step"], "journal": state["journal"]}
        return about, msgspec.convert(state["memory"], Memory)

    async def export(self, name: str = "model") -> Path:
        """The model as it is now, as a Hugging Face directory."""

        async def fill(path: Path) -> None:
            await self.trainers.at(0, Trainer.save, path, resumable=False)
            self.tokenizer.save_pretrained(path)

        path = self.directory / name
        await write_whole(path, fill)
        return path

    def save_refused(self, step: int, batch: Batch) -> Path:
        """A batch whose update was not finite, for a post-mortem with `torch.load`."""
        path = self.directory / "refused" / f"step-{step}.pt"
        path.parent.mkdir(exist_ok=True)
        torch.save({field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}, path)
        return path
