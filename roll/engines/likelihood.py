"""Logprobs of tokens straight from hidden states: output layer and log-softmax as one operation, gradients by hand.

For models read with 16 bits on a GPU. Logits exist for one chunk of tokens at a time, in 16 bits, and are computed
again on the way back; sums over the vocabulary, and over tokens for the gradient of the output layer, have 32.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from roll.engines.compiled import compiled

LOGIT_BYTES = 1280 * 2**20
"""Most memory that the logits of one chunk of tokens may take: enough for a product to run at full speed."""


def likelihood(
    hidden: Tensor,
    head: Tensor,
    ids: Tensor,
    temperature: float,
    *,
    entropy_gradient: bool = False,
    logit_bytes: int = LOGIT_BYTES,
) -> tuple[Tensor, Tensor]:
    """Logprobs and entropies [tokens] fp32 of `ids` under softmax(hidden @ head.T / temperature).

    The product has the dtype of `hidden` [tokens, hidden]; `head` [vocab, hidden] may have a wider one, as then has its
    gradient. Entropies have a gradient only if asked for.
    """
    size = max(1, logit_bytes // (hidden.element_size() * len(head)))
    found: tuple[Tensor, Tensor] = _Likelihood.apply(hidden, head, ids, _How(temperature, entropy_gradient, size))
    return found


class _How(NamedTuple):
    temperature: float
    entropy_gradient: bool
    size: int
    """Of a chunk."""


class _Likelihood(Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, head: Tensor, ids: Tensor, how: _How) -> tuple[Tensor, Tensor]:
        narrow, size = head.to(hidden.dtype), how.size
        parts = [
            _measured(hidden[at : at + size] @ narrow.t(), ids[at : at + size], how.temperature)
            for at in range(0, max(1, len(ids)), size)
        ]
        logprobs, sums, entropies = map(torch.cat, zip(*parts, strict=True))
        ctx.save_for_backward(hidden, head, ids, sums, entropies)
        ctx.how = how
        if not how.entropy_gradient:
            ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_logprobs: Tensor, to_entropies: Tensor) -> tuple[Tensor, Tensor, None, None]:
        hidden, head, ids, sums, entropies = ctx.saved_tensors
        narrow = head.to(hidden.dtype)
        to_hidden, to_head = torch.empty_like(hidden), torch.zeros_like(head)
        for at in range(0, len(ids), ctx.how.size):
            part = slice(at, at + ctx.how.size)
            rows = (ids[part], sums[part], entropies[part], to_logprobs[part], to_entropies[part])
            slopes = _sloped(hidden[part] @ narrow.t(), rows, ctx.how.temperature)
            torch.mm(slopes, narrow, out=to_hidden[part])
            to_head += slopes.t() @ hidden[part]
        return to_hidden, to_head, None, None


@compiled
def _measured(logits: Tensor, ids: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """Of each row the logprob of its id, the logarithm of its normaliser, and its entropy."""
    wide = logits.float() / temperature
    sums = wide.logsumexp(-1)
    logprobs = wide.gather(-1, ids.unsqueeze(-1)).squeeze(-1) - sums
    entropies = sums - ((wide - sums.unsqueeze(-1)).exp() * wide).sum(-1)
    return logprobs, sums, entropies


@compiled
def _sloped(logits: Tensor, rows: tuple[Tensor, Tensor, Tensor, Tensor, Tensor], temperature: float) -> Tensor:
    """The gradient of `logits` [tokens, vocab] from those of logprobs and entropies."""
    ids, sums, entropies, to_logprobs, to_entropies = (row.unsqueeze(-1) for row in rows)
    logprobs = logits.float() / temperature - sums
    chosen = torch.arange(logits.shape[-1], device=logits.device) == ids
    slopes = torch.where(chosen, to_logprobs, 0.0)
    slopes = slopes - logprobs.exp() * (to_logprobs + to_entropies * (logprobs + entropies))
    return (slopes / temperature).to(logits.dtype)
