"""Logprobs of tokens directly from hidden states: output layer and log-softmax in one operation, manual gradients.

For models in 16 bits on a GPU, and for a vocabulary that is divided among ranks: these exchange four numbers per token.
Logits exist for one chunk of tokens at a time and are recomputed in the backward pass.
They are products of 16-bit numbers accumulated in 32 bits, as are the sums over the vocabulary, and over tokens for the
gradient of the output layer. Logits of a trained model are large: rounding them is most of the cost of 16 bits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from roll.engines.native.compiled import compiled

LOGIT_BYTES = 1280 * 2**20
"""Upper bound on the memory of the logits of one chunk of tokens: enough for a product to run at full speed."""


class Division(NamedTuple):
    """How logits are divided: among ranks by rows of the output layer, and into chunks of tokens."""

    group: Any = None
    """Ranks with the other rows; None if there are none."""
    logit_bytes: int = LOGIT_BYTES


_UNDIVIDED = Division()


def likelihood(
    hidden: Tensor,
    head: Tensor,
    ids: Tensor,
    temperature: float,
    *,
    entropy_gradient: bool = False,
    division: Division = _UNDIVIDED,
) -> tuple[Tensor, Tensor]:
    """Logprobs and entropies [tokens] fp32 of `ids` under softmax(hidden @ head.T / temperature).

    Factors have the dtype of `hidden` [tokens, hidden]; `head` [vocab, hidden] and its gradient may be wider. Entropies
    have a gradient only with `entropy_gradient`.

    With a group `head` has this rank's rows, and `ids` count from its first one. All ranks get the results of the whole
    vocabulary; the gradient of `hidden` is this rank's summand.
    """
    size = max(1, division.logit_bytes // (4 * len(head)))
    options = _Options(temperature, entropy_gradient, size, division.group)
    result: tuple[Tensor, Tensor] = _Likelihood.apply(hidden, head, ids, options)
    return result


class _Options(NamedTuple):
    temperature: float
    entropy_gradient: bool
    size: int
    """Tokens per chunk."""
    group: Any


class _Likelihood(Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, head: Tensor, ids: Tensor, options: _Options) -> tuple[Tensor, Tensor]:
        narrow, size = head.to(hidden.dtype), options.size
        parts = [
            _whole(
                _measure(wide_product(hidden[at : at + size], narrow), ids[at : at + size], options.temperature),
                options.group,
            )
            for at in range(0, max(1, len(ids)), size)
        ]
        logprobs, sums, entropies = map(torch.cat, zip(*parts, strict=True))
        ctx.save_for_backward(hidden, head, ids, sums, entropies)
        ctx.options = options
        if not options.entropy_gradient:
            ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_logprobs: Tensor, to_entropies: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        hidden, head, ids, sums, entropies = ctx.saved_tensors
        narrow = head.to(hidden.dtype)
        to_hidden = torch.empty_like(hidden)
        to_head = torch.zeros_like(head) if ctx.needs_input_grad[1] else None
        for at in range(0, len(ids), ctx.options.size):
            part = slice(at, at + ctx.options.size)
            rows = (ids[part], sums[part], entropies[part], to_logprobs[part], to_entropies[part])
            slopes = _logit_gradient(wide_product(hidden[part], narrow), rows, ctx.options.temperature, hidden.dtype)
            torch.mm(slopes, narrow, out=to_hidden[part])
            if to_head is not None:
                _add_product(to_head, slopes.t(), hidden[part])
        return to_hidden, to_head, None, None


def wide_logits(hidden: Tensor, head: Tensor) -> Tensor:
    """`wide_product` with gradients: those of logits are rounded to the dtype of `hidden`, that of `head` is not."""
    result: Tensor = _WideProduct.apply(hidden, head)
    return result


class _WideProduct(Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, head: Tensor) -> Tensor:
        ctx.save_for_backward(hidden, head)
        return wide_product(hidden, head.to(hidden.dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_logits: Tensor) -> tuple[Tensor, Tensor | None]:
        hidden, head = ctx.saved_tensors
        slopes, to_head = to_logits.to(hidden.dtype), None
        if ctx.needs_input_grad[1]:
            to_head = torch.zeros_like(head)
            _add_product(to_head, slopes.t(), hidden)
        return slopes @ head.to(hidden.dtype), to_head


def wide_product(hidden: Tensor, head: Tensor) -> Tensor:
    """hidden @ head.T accumulated in at least 32 bits."""
    if hidden.element_size() >= 4:
        return hidden @ head.t()
    if hidden.is_cuda:
        return torch.mm(hidden, head.t(), out_dtype=torch.float32)
    return hidden.float() @ head.t().float()


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left @ right, without rounding the product if `total` is wider than the factors."""
    if total.is_cuda and total.dtype == torch.float32 and left.element_size() < 4:
        torch.addmm(total, left, right, out_dtype=torch.float32, out=total)
    else:
        total += left @ right


@compiled
def _measure(logits: Tensor, ids: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """For each row the largest logit, the sums of powers and of weighted logits below it, and the logit of its id.

    The last one is 0 if the logits do not have the id.
    """
    wide = logits.float() / temperature
    most = wide.amax(-1, keepdim=True)
    parts = (wide - most).exp()
    total = parts.sum(-1)  # with the next line, one pass over the logits instead of the two of `logsumexp`
    weighted = (parts * wide).sum(-1)
    inside = (ids >= 0) & (ids < wide.shape[-1])
    chosen = wide.gather(-1, torch.where(inside, ids, 0).unsqueeze(-1)).squeeze(-1)
    return most.squeeze(-1), total, weighted, torch.where(inside, chosen, 0.0)


def _whole(measured: tuple[Tensor, Tensor, Tensor, Tensor], group: Any) -> tuple[Tensor, Tensor, Tensor]:
    """For each row the logprob of its id, the logarithm of its normaliser, and its entropy, from those of all ranks."""
    most, total, weighted, chosen = measured
    if group is not None:
        largest = most.clone()
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
        scale = (most - largest).exp()
        sums = torch.stack([total * scale, weighted * scale, chosen])
        dist.all_reduce(sums, group=group)
        most, (total, weighted, chosen) = largest, sums
    normaliser = most + total.log()
    return chosen - normaliser, normaliser, normaliser - weighted / total


@compiled
def _logit_gradient(
    logits: Tensor, rows: tuple[Tensor, Tensor, Tensor, Tensor, Tensor], temperature: float, dtype: torch.dtype
) -> Tensor:
    """The gradient of `logits` [tokens, vocab] from those of logprobs and entropies, rounded to `dtype`."""
    ids, sums, entropies, to_logprobs, to_entropies = (row.unsqueeze(-1) for row in rows)
    logprobs = logits.float() / temperature - sums
    chosen = torch.arange(logits.shape[-1], device=logits.device) == ids
    slopes = torch.where(chosen, to_logprobs, 0.0)
    slopes = slopes - logprobs.exp() * (to_logprobs + to_entropies * (logprobs + entropies))
    return (slopes / temperature).to(dtype)
