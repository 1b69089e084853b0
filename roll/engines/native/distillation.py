"""Distillation with native models: the teacher's states or most likely tokens, and the student's step towards them.

Logits of either model exist for one chunk of tokens at a time; with several chunks they are recomputed in the backward
pass. For a loss over the whole vocabulary the teacher sends hidden states, and the student has its output layer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812 - its customary name
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from roll.algorithms.distillation import (
    Distillation,
    TeacherTokens,
    distillation_rows,
    join_tokens,
    most_likely,
    trained_indices,
)
from roll.engines.base import OutputLayer
from roll.engines.native.likelihood import wide_logits
from roll.engines.native.packed import to_device
from roll.engines.native.sampling import cap_logits
from roll.engines.native.trainer import MetricSums, NativeLogprobModel, NativeTrainer
from roll.types import Batch

LOGIT_BYTES = 256 * 2**20
"""Upper bound on the memory of the fp32 logits of one chunk of tokens; a loss has several rows of this size."""


class NativeTeacher(NativeLogprobModel):
    """`TeacherModel` over one decoder."""

    async def output_layer(self) -> OutputLayer:
        weight = self.settings.precision.round_weight(self.decoder.head)
        return OutputLayer(weight=weight.detach().cpu(), cap=self.decoder.logit_cap)

    async def hidden_states(self, batch: Batch) -> TeacherTokens:
        return await self._tokens(batch, lambda before: TeacherTokens(hidden=before))

    async def most_likely(self, batch: Batch, num: int, objective: Distillation) -> TeacherTokens:
        layer = OutputLayer(weight=self.settings.precision.round_weight(self.decoder.head), cap=self.decoder.logit_cap)

        def choose(before: Tensor) -> TeacherTokens:
            parts = [
                most_likely(logits_of(before[part], layer)[:, : objective.vocab], objective.temperature, num)
                for part in chunks(len(before), layer)
            ]
            ids, logprobs = (torch.cat(rows) for rows in zip(*parts, strict=True))
            return TeacherTokens(ids=ids, logprobs=logprobs)

        return await self._tokens(batch, choose)

    async def _tokens(self, batch: Batch, read: Callable[[Tensor], TeacherTokens]) -> TeacherTokens:
        """What `read` returns for the states before the trained tokens, in their order."""
        order, parts = list[Tensor](), list[TeacherTokens]()
        for rows, part in self._microbatches(batch):
            with torch.no_grad():
                _, _, before = self._states(part, part.trained, self.settings.precision)
                parts.append(read(before))
            order.append(trained_indices(batch, rows))
            await asyncio.sleep(0)
        return join_tokens(parts, order)


class NativeDistiller(NativeTrainer):
    """`Trainer` and `Distiller` over one decoder."""

    _layer: OutputLayer | None = None
    """Of the teacher; None: it sends its most likely tokens."""

    async def receive_teacher(self, layer: OutputLayer) -> None:
        self._layer = OutputLayer(weight=layer.weight.to(self.decoder.device), cap=layer.cap)

    async def distil(self, batch: Batch, teacher: TeacherTokens, objective: Distillation) -> dict[str, float]:
        def accumulate(rows: Sequence[int], part: Batch, sums: MetricSums) -> None:
            load = self._expert_load if bool(part.trained.any()) else None
            with nullcontext() if load is None else load.counting():
                losses = self._distillation_losses(part, teacher.select(trained_indices(batch, rows)), objective)
            assert part.weights is not None, "a supervised batch has weights"
            loss = (losses[0] * to_device(part.weights[part.trained], losses.device)).sum()
            every = torch.ones(losses.shape[1], dtype=torch.bool, device=losses.device)
            sums.add(loss, every, {"divergence": losses[1], "surprise": losses[2]})
            self._backward(loss)

        return await self._update(batch, accumulate)

    async def distillation_losses(self, batch: Batch, teacher: TeacherTokens, objective: Distillation) -> Tensor:
        order, parts = list[Tensor](), list[Tensor]()
        for rows, part in self._microbatches(batch):
            index = trained_indices(batch, rows)
            with torch.no_grad():
                parts.append(self._distillation_losses(part, teacher.select(index), objective).cpu())
            order.append(index)
            await asyncio.sleep(0)
        return torch.cat(parts, 1)[:, torch.cat(order).argsort()]

    def _distillation_losses(self, batch: Batch, teacher: TeacherTokens, objective: Distillation) -> Tensor:
        ids, at, before = self._states(batch, batch.trained, self.settings.precision)
        head = self.settings.precision.round_weight(self.decoder.head)
        student = OutputLayer(weight=head, cap=self.decoder.logit_cap)
        rows = {name: getattr(teacher, name) for name in ("ids", "logprobs", "hidden")}
        there = {name: None if row is None else to_device(row, ids.device) for name, row in rows.items()}
        targets = DistillationTargets(
            ids=ids[to_device(at, ids.device)], teacher=TeacherTokens(**there), layer=self._layer
        )
        return chunked_losses(before, student, targets, objective)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DistillationTargets:
    """The tokens that losses are about, and the teacher's distributions for them."""

    ids: Tensor
    teacher: TeacherTokens
    layer: OutputLayer | None
    """Of the teacher; None unless it sends hidden states."""

    def distributions(self, part: slice) -> TeacherTokens | Tensor:
        """The teacher's most likely tokens, or its logits."""
        teacher = self.teacher.select(part)
        if teacher.hidden is None:
            return teacher
        assert self.layer is not None, "the teacher's output layer arrives before its states"
        with torch.no_grad():
            return logits_of(teacher.hidden, self.layer)


def chunked_losses(
    before: Tensor,
    student: OutputLayer,
    targets: DistillationTargets,
    objective: Distillation,
    *,
    logit_bytes: int = LOGIT_BYTES,
) -> Tensor:
    """`distillation_rows` from the student's states [tokens, hidden] before the tokens, chunk by chunk."""

    def measure(states: Tensor, weight: Tensor, part: slice) -> Tensor:
        logits = logits_of(states, OutputLayer(weight=weight, cap=student.cap))
        return distillation_rows(logits, targets.ids[part], targets.distributions(part), objective)

    parts = list(chunks(len(before), student, logit_bytes))
    if len(parts) == 1:
        return measure(before, student.weight, parts[0])
    run = partial(checkpoint, measure, use_reentrant=False)
    return torch.cat([run(before[part], student.weight, part) for part in parts], 1)


def chunks(num_tokens: int, layer: OutputLayer, logit_bytes: int = LOGIT_BYTES) -> list[slice]:
    """Consecutive tokens whose logits take at most this memory."""
    size = max(1, logit_bytes // (4 * len(layer.weight)))
    return [slice(at, at + size) for at in range(0, max(1, num_tokens), size)]


def logits_of(states: Tensor, layer: OutputLayer) -> Tensor:
    """[tokens, vocab], in at least 32 bits."""
    wide = states.element_size() >= 4 and states.dtype == layer.weight.dtype
    logits = F.linear(states, layer.weight) if wide else wide_logits(states, layer.weight)
    return cap_logits(logits, layer.cap)
