"""The decoder's forward pass in 16 bits: weights keep their training precision and are rounded where they are used.

Norms and the exponentials of gates are computed in 32 bits; values between operations have 16, as in the engines that
sample. Gradients of weights have the precision of the weights. A layer consists of two functions with attention between
them, so that on a GPU each is compiled once for all layers and all numbers of tokens.
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

from roll.engines.native import fp8
from roll.engines.native.compiled import compiled
from roll.engines.native.decoder import Attend, Decoder, Layer
from roll.engines.native.fp8 import Fp8

Weights = tuple[Tensor | None, ...]
Adapters = tuple[Any, ...]
"""`roll.engines.native.lora.AdapterTensors` or None per matrix; empty if the model has no adapters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """The precision of a forward pass."""

    dtype: torch.dtype | None = None
    """Dtype of values between operations; None: that of the weights."""
    checkpointing: bool = False
    """Whether activations inside a layer are recomputed in the backward pass instead of being stored."""
    exact: bool = False
    """Whether only weights are rounded to `dtype`, and values between operations have 32 bits."""
    fp8: Fp8 | None = None
    """Products in fp8; None: there are none."""

    def round_weight(self, weight: Tensor | None) -> Any:
        """The weight as the forward pass uses it; the gradient goes to the unrounded weight."""
        if not self.exact or weight is None or self.dtype is None:
            return weight
        return _Round.apply(weight, self.dtype)


def hidden(decoder: Decoder, ids: Tensor, positions: Tensor, attend: Attend, precision: Precision) -> Tensor:
    """[tokens] ids at [tokens] positions -> [tokens, hidden] in the precision's dtype, normalised for the head."""
    dtype = (None if precision.exact else precision.dtype) or decoder.embed.dtype
    cos, sin = (table[positions].to(dtype) for table in (decoder.cos, decoder.sin))
    x = F.embedding(ids, precision.round_weight(decoder.embed)).to(dtype)
    fed = torch.zeros_like(x)
    for index, layer in enumerate(decoder.layers):
        assert isinstance(layer, Layer)
        run = partial(_layer, layer, partial(attend, index), precision)
        if precision.checkpointing and torch.is_grad_enabled():
            x, fed = _checkpoint(run, x, fed, cos, sin)
        else:
            x, fed = run(x, fed, cos, sin)
    return _final(x, fed, precision.round_weight(decoder.norm), decoder.shape.eps)


def _checkpoint(run: Any, *args: Tensor) -> tuple[Tensor, Tensor]:
    result: Any = checkpoint(run, *args, use_reentrant=False)
    return result


def _layer(layer: Layer, attend: Any, precision: Precision, x: Tensor, fed: Tensor, *angles: Tensor) -> Any:
    """The two summands of the layer's output: the next norm reads their sum before it is rounded."""
    shape = layer.shape
    into: Weights = tuple(map(precision.round_weight, (layer.norm_in, layer.qkv, layer.qkv_bias, layer.qk_norm)))
    wide: Weights = (layer.out, layer.out_bias, layer.norm_mid, layer.gate_up, layer.down)
    out: Weights = tuple(map(precision.round_weight, wide))
    numbers = (shape.heads, shape.kv_heads, shape.eps, precision.fp8)
    cos, sin = angles
    x, q, k, v = _before(x, fed, cos, sin, (*into, *_adapters(layer, "qkv")), numbers)
    return _after(x, attend(q, k, v), (*out, *_adapters(layer, "out", "gate_up", "down")), numbers[2:])


def _adapters(layer: Layer, *names: str) -> Adapters:
    """Empty if the layer has no adapters, so that compiled functions do not change."""
    if layer.adapters is None or not layer.adapted:
        return ()
    adapters = [layer.adapter(name) for name in names]
    return tuple(None if adapter is None else adapter.tensors() for adapter in adapters)


@compiled
def _before(
    x: Tensor, fed: Tensor, cos: Tensor, sin: Tensor, weights: Any, numbers: tuple[int, int, float, Fp8 | None]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The sum, and its queries, keys and values, [tokens, heads, dim] each."""
    (norm_in, qkv, bias, qk_norm, *adapter), dim = weights, cos.shape[-1]
    num_heads, kv_heads, eps, narrow = numbers
    total = _wide(x) + _wide(fed)
    mixed = _project(_norm(total, norm_in, eps, x.dtype), (qkv, bias, *adapter), narrow)
    qk, v = mixed.view(-1, num_heads + 2 * kv_heads, dim).split((num_heads + kv_heads, kv_heads), 1)
    if qk_norm is not None:
        sides = (qk_norm[0].expand(num_heads, dim), qk_norm[1].expand(kv_heads, dim))
        qk = _norm(_wide(qk), torch.cat(sides), eps, x.dtype)
    wide = _wide(qk)
    turned = wide * cos.unsqueeze(1) + wide.roll(dim // 2, -1) * sin.unsqueeze(1)
    q, k = turned.to(x.dtype).split((num_heads, kv_heads), 1)
    return total.to(x.dtype), q, k, v


@compiled
def _after(x: Tensor, mixed: Tensor, weights: Any, numbers: tuple[float, Fp8 | None]) -> tuple[Tensor, Tensor]:
    """The sum with the output of attention, and the output of the feed-forward."""
    (out, out_bias, norm_mid, gate_up, down, *adapters), (eps, narrow) = weights, numbers
    out_adapter, gate_adapter, down_adapter = adapters or (None, None, None)
    total = _wide(x) + _wide(_project(mixed, (out, out_bias, out_adapter), narrow))
    gate, up = _project(_norm(total, norm_mid, eps, x.dtype), (gate_up, None, gate_adapter), narrow).chunk(2, -1)
    fed = _project((F.silu(_wide(gate)) * _wide(up)).to(x.dtype), (down, None, down_adapter), narrow)
    return total.to(x.dtype), fed


@compiled
def _final(x: Tensor, fed: Tensor, weight: Tensor, eps: float) -> Tensor:
    return _norm(_wide(x) + _wide(fed), weight, eps, x.dtype)


def _norm(wide: Tensor, weight: Tensor | None, eps: float, dtype: torch.dtype) -> Tensor:
    """RMS norm with the weight rounded as it is published, like every other weight."""
    assert weight is not None
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale * weight.to(dtype)).to(dtype)


def _project(x: Tensor, weights: Adapters, narrow: Fp8 | None) -> Tensor:
    """`x` through a matrix, its bias and its adapter, of which the last two may be None."""
    weight, bias, adapter = (*weights, None)[:3]
    assert weight is not None
    if narrow is not None and fp8.size(*weight.shape) >= narrow.least_size:
        result = fp8.product(x, weight, narrow.forward)
    else:
        result = x @ weight.to(x.dtype)
    result = result if bias is None else result + bias.to(x.dtype)
    return result if adapter is None else result + _adapter_output(x, adapter, result.shape[-1])


def _adapter_output(x: Tensor, adapter: Any, size: int) -> Tensor:
    """The sum that an adapter contributes, with B rounded as it is served: after its scale is applied."""
    thin = (x @ adapter.a.to(x.dtype)).chunk(len(adapter.b), 1)
    parts: list[Tensor] = []
    at = 0
    for number, (first, end) in enumerate(adapter.spans):
        if first > at:
            parts.append(x.new_zeros(len(x), first - at))
        parts.append(thin[number] @ (adapter.b[number] * adapter.scale).to(x.dtype))
        at = end
    if size > at:
        parts.append(x.new_zeros(len(x), size - at))
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


class _Round(Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, dtype: torch.dtype) -> Tensor:
        return weight.to(dtype).to(weight.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None
