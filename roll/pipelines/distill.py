"""Distillation: train a student on the distributions of a teacher, row by row, until the steps are done.

A step gets the teacher's distributions for the trained tokens of its rows, live or from a store, and makes one
optimizer step towards them. The teacher's weights never change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from roll.algorithms.distillation import Distillation, TeacherTokens, join_tokens, trained_indices
from roll.cluster.handle import Cluster
from roll.data.answer_rows import IdRow
from roll.data.collate import shards, supervised
from roll.data.teacher_store import TeacherStore
from roll.engines.base import Distiller, TeacherModel
from roll.pipelines.offline import OfflineLoop, chunks, indices_of
from roll.types import Batch

_NAMES = ("loss", "divergence", "surprise")


class TeacherSource(Protocol):
    """Where the distributions for one set of rows come from."""

    async def tokens(self, batch: Batch, indices: Sequence[int]) -> TeacherTokens:
        """Those for the trained tokens of `batch`, which has the rows with these indices."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTeacher:
    """Distributions that a model computes when they are used."""

    cluster: Cluster[TeacherModel]
    objective: Distillation
    top_k: int | None
    """Most likely tokens to send; None: hidden states, from which the student computes the whole distributions."""

    async def tokens(self, batch: Batch, indices: Sequence[int]) -> TeacherTokens:
        sharded = shards(batch, min(self.cluster.size, len(batch.lengths)))
        parts = [batch.select(rows) for rows in sharded]
        if self.top_k is None:
            tokens = await self.cluster.scatter(TeacherModel.hidden_states, parts)
        else:
            tokens = await self.cluster.scatter(TeacherModel.most_likely, parts, self.top_k, self.objective)
        return join_tokens(tokens, [trained_indices(batch, rows) for rows in sharded])


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTeacher:
    """Distributions from disk."""

    store: TeacherStore

    async def tokens(self, batch: Batch, indices: Sequence[int]) -> TeacherTokens:
        ids, logprobs = self.store.read(indices)
        return TeacherTokens(ids=torch.as_tensor(ids), logprobs=torch.as_tensor(logprobs))


@dataclass(frozen=True, slots=True, kw_only=True)
class TaughtRows:
    """Rows of prompts and responses with their teacher."""

    rows: Sequence[IdRow]
    teacher: TeacherSource

    async def batch(self, indices: Sequence[int]) -> tuple[Batch, TeacherTokens]:
        """The rows with these indices, and the teacher's distributions for them."""
        batch = supervised([self.rows[index] for index in indices])
        return batch, await self.teacher.tokens(batch, indices)


@dataclass(slots=True, kw_only=True)
class DistillLoop(OfflineLoop):
    """One run of distillation, with all its parts already built."""

    objective: Distillation
    training: TaughtRows
    held_out: TaughtRows
    student: Cluster[Distiller]
    """One worker: the native trainer has no ranks."""

    async def update(self, step: int) -> None:
        with self.meter("score"):
            batch, tokens = await self.training.batch(indices_of(step, self.schedule, len(self.training.rows)))
        with self.meter("update"):
            metrics = await self.student.at(0, Distiller.distil, batch, tokens, self.objective)
        losses = {"loss": metrics["loss/policy"], **{name: metrics[f"loss/{name}"] for name in _NAMES[1:]}}
        self.record_update(step, metrics, int(batch.trained.sum()))
        self.meter.log({f"distillation/{name}": value for name, value in losses.items()})

    async def measure_held_out(self) -> dict[str, float]:
        total = torch.zeros(len(_NAMES), dtype=torch.float64)
        num_tokens = 0
        for indices in chunks(len(self.held_out.rows), self.schedule.batch_size):
            await self.enter_update()
            batch, tokens = await self.held_out.batch(indices)
            losses = await self.student.at(0, Distiller.distillation_losses, batch, tokens, self.objective)
            total, num_tokens = total + losses.double().sum(1), num_tokens + losses.shape[1]
        if not num_tokens:
            return {}
        return {
            f"distillation/held_out_{name}": float(each) / num_tokens for name, each in zip(_NAMES, total, strict=True)
        }
