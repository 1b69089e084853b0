"""The loss of distillation: a divergence from the teacher per trained token, mixed with that of supervised learning.

A temperature divides the logits of both models, and its square multiplies the divergence: gradients of logits then have
the same scale at any temperature.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from roll.algorithms.user_code import call, check_shape, location_of
from roll.errors import ConfigError
from roll.registry import DIVERGENCES
from roll.types import Batch, Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Distillation:
    """The quantity that one optimizer step of distillation minimises."""

    divergence: Spec
    temperature: float = 1.0
    sft_weight: float = 0.0
    """Weight of the negative logprob of the rows' own tokens; the divergence has the rest."""
    vocab: int
    """Number of tokens that are compared: those of both models."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TeacherTokens:
    """The teacher's distributions for the trained tokens of a batch, in order: its most likely tokens or its states."""

    ids: Tensor | None = None
    """[trained, k]: the most likely tokens; None with `hidden`"""
    logprobs: Tensor | None = None
    """[trained, k + 1] at the temperature of the loss: those of `ids`, then of all others together; [trained, k] if
    there are no others"""
    hidden: Tensor | None = None
    """[trained, hidden]: the states before the teacher's output layer"""

    def select(self, index: Tensor | slice) -> TeacherTokens:
        """The distributions with these indices, in that order."""
        rows = {name: getattr(self, name) for name in ("ids", "logprobs", "hidden")}
        return TeacherTokens(**{name: None if row is None else row[index] for name, row in rows.items()})


def trained_indices(batch: Batch, rows: Sequence[int]) -> Tensor:
    """Indices among the trained tokens of the batch: those of these rows, in order."""
    index, positions = batch.trained.cumsum(0) - 1, torch.as_tensor(batch.positions(rows))
    return index[positions][batch.trained[positions]]


def join_tokens(parts: Sequence[TeacherTokens], order: Sequence[Tensor]) -> TeacherTokens:
    """The parts as one on the host, sorted by the indices of their tokens."""
    by_name = {name: [getattr(part, name) for part in parts] for name in ("ids", "logprobs", "hidden")}
    index = torch.cat(list(order)).argsort()
    return TeacherTokens(
        **{name: None if rows[0] is None else torch.cat(rows).cpu()[index] for name, rows in by_name.items()}
    )


def class_logprobs(logits: Tensor, temperature: float, ids: Tensor | None = None) -> Tensor:
    """Logprobs at a temperature: [tokens, vocab], or with `ids` [tokens, k] those of `ids`, then that of all others.

    The last column is missing if `ids` has the whole vocabulary.
    """
    scaled = logits.float() / temperature
    if ids is None:
        return scaled.log_softmax(-1)
    normaliser = scaled.logsumexp(-1, keepdim=True)
    chosen = scaled.gather(-1, ids) - normaliser
    if ids.shape[-1] == scaled.shape[-1]:
        return chosen
    others = scaled.scatter(-1, ids, -torch.inf).logsumexp(-1, keepdim=True)
    return torch.cat([chosen, others - normaliser], -1)


def most_likely(logits: Tensor, temperature: float, num: int) -> tuple[Tensor, Tensor]:
    """The `num` most likely tokens of each row, the likeliest first, and their `class_logprobs`."""
    ids = logits.topk(num, -1).indices
    return ids, class_logprobs(logits, temperature, ids)


def distillation_rows(logits: Tensor, ids: Tensor, teacher: TeacherTokens | Tensor, objective: Distillation) -> Tensor:
    """[3, tokens]: loss, divergence, and negative logprob of `ids`, from the student's logits [tokens, vocab].

    `teacher` is its logits, or its most likely tokens with their logprobs.
    """
    common = logits[:, : objective.vocab]
    if isinstance(teacher, Tensor):
        classes, target = None, class_logprobs(teacher[:, : objective.vocab], objective.temperature)
    else:
        assert teacher.logprobs is not None, "hidden states become logits in the engine"
        classes, target = teacher.ids, teacher.logprobs
    student = class_logprobs(common, objective.temperature, classes)
    divergence = objective.temperature**2 * _divergence(student, target.detach(), objective.divergence)
    surprise = -logits.float().log_softmax(-1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)
    loss = (1 - objective.sft_weight) * divergence + objective.sft_weight * surprise
    return torch.stack([loss, divergence, surprise])


def _divergence(student: Tensor, teacher: Tensor, divergence: Spec) -> Tensor:
    result = call(DIVERGENCES, divergence, student, teacher)
    row = check_shape(DIVERGENCES, divergence, result, student[:, 0], per="token")
    if student.requires_grad and not row.requires_grad:
        raise ConfigError(
            f"divergence {divergence.name!r}: its result has no gradient; compute it from the student's logprobs, "
            f"without detach{location_of(DIVERGENCES, divergence)}"
        )
    return row
