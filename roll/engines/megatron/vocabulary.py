"""Logprobs and entropies where each tensor-parallel rank holds a part of the vocabulary; logits are never gathered.

Ranks exchange three numbers per token: the largest logit, and sums over the vocabulary. Logits exist for one chunk of
tokens at a time, in 32 bits, and are recomputed in the backward pass.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from roll.engines.native.likelihood import wide_product

_LOGIT_BYTES = 256 * 2**20
"""Upper bound on the memory of the logits of one chunk of tokens."""


class VocabularyPart(NamedTuple):
    """The rows of the output layer that this rank holds."""

    first: int
    """Id of the first row."""
    group: Any
    """Ranks with the other rows; None if there are none."""
    temperature: float
    entropy_gradient: bool
    size: int
    """Tokens per chunk."""


def likelihood(
    hidden: Tensor, head: Tensor, ids: Tensor, part: VocabularyPart
) -> tuple[Tensor, Tensor]:
    """Logprobs and entropies [tokens] fp32 of `ids` under softmax(hidden @ head.T / temperature), on all ranks.

    `head` [rows, hidden] is this rank's part. The gradient of `hidden` is this rank's summand of the whole gradient.
    """
    result: tuple[Tensor, Tensor] = _Likelihood.apply(hidden, head, ids, part)
    return result


def part_of(
    head: Tensor, rank: int, group: Any, *, temperature: float = 1.0, entropy_gradient: bool = False, rows: int = 0
) -> VocabularyPart:
    """The part of rank `rank`, where every rank has `rows` rows, or as many as `head` if that is 0."""
    size = max(1, _LOGIT_BYTES // (4 * max(1, len(head))))
    return VocabularyPart(rank * (rows or len(head)), group, temperature, entropy_gradient, size)


class _Likelihood(Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, head: Tensor, ids: Tensor, part: VocabularyPart) -> tuple[Tensor, Tensor]:
        narrow = head.to(hidden.dtype)
        chunks = [
            _measure(_logits(hidden[at : at + part.size], narrow, part), ids[at : at + part.size], part)
            for at in range(0, max(1, len(ids)), part.size)
        ]
        logprobs, sums, entropies = map(torch.cat, zip(*chunks, strict=True))
        ctx.save_for_backward(hidden, head, ids, sums, entropies)
        ctx.part = part
        if not part.entropy_gradient:
            ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_logprobs: Tensor, to_entropies: Tensor) -> tuple[Tensor, Tensor, None, None]:
        hidden, head, ids, sums, entropies = ctx.saved_tensors
        part: VocabularyPart = ctx.part
        narrow, to_hidden, to_head = head.to(hidden.dtype), torch.zeros_like(hidden), torch.zeros_like(head)
        for at in range(0, len(ids), part.size):
            now = slice(at, at + part.size)
            logprobs = _logits(hidden[now], narrow, part) - sums[now, None]
            inside, local = _local(ids[now], len(head), part)
            slopes = -logprobs.exp() * to_logprobs[now, None]
            if part.entropy_gradient:
                slopes -= logprobs.exp() * to_entropies[now, None] * (logprobs + entropies[now, None])
            slopes.scatter_add_(1, local[:, None], (to_logprobs[now] * inside)[:, None])
            slopes = (slopes / part.temperature).to(hidden.dtype)
            to_hidden[now] = slopes @ narrow
            to_head += (slopes.t() @ hidden[now]).to(to_head.dtype)
        return to_hidden, to_head, None, None


def _logits(hidden: Tensor, head: Tensor, part: VocabularyPart) -> Tensor:
    return wide_product(hidden, head).float() / part.temperature


def _local(ids: Tensor, rows: int, part: VocabularyPart) -> tuple[Tensor, Tensor]:
    """Which ids this rank holds, and their rows, which are 0 for others."""
    local = ids - part.first
    inside = (local >= 0) & (local < rows)
    return inside, torch.where(inside, local, 0)


def _measure(logits: Tensor, ids: Tensor, part: VocabularyPart) -> tuple[Tensor, Tensor, Tensor]:
    """For each token the logprob of its id, the logarithm of the normaliser, and the entropy."""
    most = _reduce(logits.amax(-1), part.group, dist.ReduceOp.MAX)
    inside, local = _local(ids, logits.shape[1], part)
    powers = (logits - most[:, None]).exp()
    chosen = logits.gather(1, local[:, None]).squeeze(1) * inside
    totals = torch.stack([powers.sum(-1), (powers * logits).sum(-1), chosen])
    total, weighted, chosen = _reduce(totals, part.group, dist.ReduceOp.SUM)
    sums = most + total.log()
    return chosen - sums, sums, sums - weighted / total


def _reduce(values: Tensor, group: Any, operation: Any) -> Tensor:
    if group is not None:
        dist.all_reduce(values, operation, group=group)
    return values
