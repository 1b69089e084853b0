"""The decoder read with 16 bits: weights stay as wide as they are trained, and are rounded where they are used.

Norms and the exponentials of gates are computed with 32 bits; what passes from one operation to the next has 16, as in
the engines that sample. Gradients of weights come out as wide as the weights. Two functions make a layer, with
attention between them, so that on a GPU each is compiled once for all layers and all numbers of tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its customary name
from torch import Tensor
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint

from roll.engines.native.compiled import compiled
from roll.engines.native.decoder import Attend, Decoder, Layer

Weights = tuple[Tensor | None, ...]
Lows = tuple[Any, ...]
"""What stands beside matrices, as `roll.engines.native.lora.Low`, or None; nothing at all where a model has no adapters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How a decoder is read."""

    dtype: torch.dtype | None = None
    """Of what passes from one operation to the next; None: that of the weights."""
    checkpointing: bool = False
    """Whether the inside of a layer is computed again on the way back instead of being kept."""
    exact: bool = False
    """Whether only weights are rounded to `dtype`, and what passes from one operation to the next has 32 bits."""

    def used(self, weight: Tensor | None) -> Any:
        """A weight as it is computed with; its gradient is that of the one that is kept."""
        if not self.exact or weight is None or self.dtype is None:
            return weight
        return _Rounded.apply(weight, self.dtype)


def hidden(decoder: Decoder, ids: Tensor, positions: Tensor, attend: Attend, reading: Reading) -> Tensor:
    """[tokens] ids at [tokens] positions -> [tokens, hidden] of the reading's dtype, normed and ready for the head."""
    dtype = (None if reading.exact else reading.dtype) or decoder.embed.dtype
    cos, sin = (table[positions].to(dtype) for table in (decoder.cos, decoder.sin))
    x = F.embedding(ids, reading.used(decoder.embed)).to(dtype)
    fed = torch.zeros_like(x)
    for index, layer in enumerate(decoder.layers):
        assert isinstance(layer, Layer)
        through = partial(_layer, layer, partial(attend, index), reading)
        if reading.checkpointing and torch.is_grad_enabled():
            x, fed = _checkpointed(through, x, fed, cos, sin)
        else:
            x, fed = through(x, fed, cos, sin)
    return _final(x, fed, reading.used(decoder.norm), decoder.shape.eps)


def _checkpointed(through: Any, *args: Tensor) -> tuple[Tensor, Tensor]:
    found: Any = checkpoint(through, *args, use_reentrant=False)
    return found


def _layer(layer: Layer, attend: Any, reading: Reading, x: Tensor, fed: Tensor, *angles: Tensor) -> Any:
    """What stands before the last addition, and what is to be added: a norm reads the sum before it is rounded."""
    shape = layer.shape
    into: Weights = tuple(map(reading.used, (layer.norm_in, layer.qkv, layer.qkv_bias, layer.qk_norm)))
    wide: Weights = (layer.out, layer.out_bias, layer.norm_mid, layer.gate_up, layer.down)
    out: Weights = tuple(map(reading.used, wide))
    numbers = (shape.heads, shape.kv_heads, shape.eps)
    cos, sin = angles
    x, q, k, v = _before(x, fed, cos, sin, (*into, *_lows(layer, "qkv")), numbers)
    return _after(x, attend(q, k, v), (*out, *_lows(layer, "out", "gate_up", "down")), shape.eps)


def _lows(layer: Layer, *names: str) -> Lows:
    """Nothing where a layer has no adapters, so that a compiled function is the same as ever."""
    if layer.adapters is None or not layer.adapted:
        return ()
    found = [layer.adapter(name) for name in names]
    return tuple(None if each is None else each.low() for each in found)


@compiled
def _before(
    x: Tensor, fed: Tensor, cos: Tensor, sin: Tensor, weights: Any, numbers: tuple[int, int, float]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The sum, and its queries, keys and values, [tokens, heads, dim] each."""
    (norm_in, qkv, bias, qk_norm, *low), (num_heads, kv_heads, eps), dim = weights, numbers, cos.shape[-1]
    total = _wide(x) + _wide(fed)
    mixed = _projected(_normed(total, norm_in, eps, x.dtype), qkv, bias, *low)
    qk, v = mixed.view(-1, num_heads + 2 * kv_heads, dim).split((num_heads + kv_heads, kv_heads), 1)
    if qk_norm is not None:
        sides = (qk_norm[0].expand(num_heads, dim), qk_norm[1].expand(kv_heads, dim))
        qk = _normed(_wide(qk), torch.cat(sides), eps, x.dtype)
    wide = _wide(qk)
    turned = wide * cos.unsqueeze(1) + wide.roll(dim // 2, -1) * sin.unsqueeze(1)
    q, k = turned.to(x.dtype).split((num_heads, kv_heads), 1)
    return total.to(x.dtype), q, k, v


@compiled
def _after(x: Tensor, mixed: Tensor, weights: Any, eps: float) -> tuple[Tensor, Tensor]:
    """The sum with what attention found, and what the feed-forward adds to it."""
    out, out_bias, norm_mid, gate_up, down, *lows = weights
    beside_out, beside_gate, beside_down = lows or (None, None, None)
    total = _wide(x) + _wide(_projected(mixed, out, out_bias, beside_out))
    gate, up = _projected(_normed(total, norm_mid, eps, x.dtype), gate_up, None, beside_gate).chunk(2, -1)
    fed = _projected((F.silu(_wide(gate)) * _wide(up)).to(x.dtype), down, None, beside_down)
    return total.to(x.dtype), fed


@compiled
def _final(x: Tensor, fed: Tensor, weight: Tensor, eps: float) -> Tensor:
    return _normed(_wide(x) + _wide(fed), weight, eps, x.dtype)


def _normed(wide: Tensor, weight: Tensor | None, eps: float, dtype: torch.dtype) -> Tensor:
    """With the weight rounded as it is published, like every other one."""
    assert weight is not None
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale * weight.to(dtype)).to(dtype)


def _projected(x: Tensor, weight: Tensor | None, bias: Tensor | None, low: Any = None) -> Tensor:
    assert weight is not None
    found = x @ weight.to(x.dtype)
    found = found if bias is None else found + bias.to(x.dtype)
    return found if low is None else found + _beside(x, low, found.shape[-1])


def _beside(x: Tensor, low: Any, size: int) -> Tensor:
    """What an adapter adds, with B rounded as it is served: its number in it already."""
    thin = (x @ low.a.to(x.dtype)).chunk(len(low.b), 1)
    found: list[Tensor] = []
    at = 0
    for number, (first, end) in enumerate(low.spans):
        if first > at:
            found.append(x.new_zeros(len(x), first - at))
        found.append(thin[number] @ (low.b[number] * low.scale).to(x.dtype))
        at = end
    if size > at:
        found.append(x.new_zeros(len(x), size - at))
    return found[0] if len(found) == 1 else torch.cat(found, -1)


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


class _Rounded(Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, dtype: torch.dtype) -> Tensor:
        return weight.to(dtype).to(weight.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None
