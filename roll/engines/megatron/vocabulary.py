"""Logprobs and entropies where each tensor-parallel rank holds a part of the vocabulary.

Logits are never gathered, except for top-k and top-p. They exist for one chunk of tokens at a time, in 32 bits, and are
recomputed in the backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from roll.engines.native.likelihood import Division, likelihood, wide_product
from roll.engines.native.sampling import restrict
from roll.types import Sampling

_LOGIT_BYTES = 256 * 2**20
"""Upper bound on the memory of the logits of one chunk of tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VocabularyPart:
    """The rows of the output layer that this rank holds, and the distribution to measure."""

    weight: Tensor
    """[rows, hidden]; on the last ranks some rows may be padding."""
    first: int
    """Id of the first row."""
    total: int
    """Size of the vocabulary."""
    group: Any
    """Ranks with the other rows; None if there are none."""
    sampling: Sampling
    entropy_gradient: bool = False

    @property
    def rows(self) -> int:
        """Rows of this rank without padding."""
        return max(0, min(len(self.weight), self.total - self.first))

    @property
    def temperature(self) -> float:
        """Divides the logits."""
        return self.sampling.temperature or 1.0

    @property
    def chunk(self) -> int:
        """Tokens whose logits exist at a time."""
        return max(1, _LOGIT_BYTES // (4 * len(self.weight)))


def score(hidden: Tensor, part: VocabularyPart, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Logprobs and entropies [tokens] fp32 of `ids`, each under the hidden state before it, on all ranks.

    The gradient of `hidden` is this rank's summand of the whole gradient.
    """
    if part.sampling.top_k or part.sampling.top_p < 1.0:
        return _score_whole(hidden, part, ids)
    weight = part.weight[: part.rows]
    return likelihood(
        hidden,
        weight.float(),  # its gradient is accumulated in 32 bits
        ids - part.first,
        part.temperature,
        entropy_gradient=part.entropy_gradient,
        division=Division(part.group, _LOGIT_BYTES),
    )


def _score_whole(hidden: Tensor, part: VocabularyPart, ids: Tensor) -> tuple[Tensor, Tensor]:
    """As `score`, from the logits of the whole vocabulary, which top-k and top-p need: gathered chunk by chunk."""
    size = max(1, part.chunk // (1 if part.group is None else part.group.size()))
    parts = [
        checkpoint(_score_chunk, hidden[at : at + size], part.weight, ids[at : at + size], part, use_reentrant=False)
        for at in range(0, max(1, len(ids)), size)
    ]
    return torch.cat([each[0] for each in parts]), torch.cat([each[1] for each in parts])


def _score_chunk(hidden: Tensor, weight: Tensor, ids: Tensor, part: VocabularyPart) -> tuple[Tensor, Tensor]:
    logits = _GatherColumns.apply(wide_product(hidden, weight).float(), part.group)[:, : part.total]
    logprobs = restrict(logits, part.sampling, keep=ids).log_softmax(-1)
    with torch.set_grad_enabled(part.entropy_gradient and torch.is_grad_enabled()):
        entropies = -(logprobs.exp() * logprobs.clamp_min(-1e4)).sum(-1)
    return logprobs.gather(-1, ids.unsqueeze(-1)).squeeze(-1), entropies


class _GatherColumns(Function):
    """The columns of all ranks side by side; each rank continues with the gradient of its columns."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group, ctx.width = group, x.shape[1]
        if group is None:
            return x.view_as(x)
        columns = [torch.empty_like(x) for _ in range(group.size())]
        dist.all_gather(columns, x.contiguous(), group=group)
        return torch.cat(columns, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        first = 0 if ctx.group is None else ctx.group.rank() * ctx.width
        return gradient[:, first : first + ctx.width], None
