"""Operations of a decoder with gradients written out by hand: the same formulas, fewer passes over memory.

Left to itself, autograd computes each of these as a chain of small operations and the exponential of a gate twice; on a
CPU that is a third of an update. Nothing here knows of models or sequences.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`x` over the root mean square of its last axis, times `weight`, whose shape is that of `x`'s last axes."""
    if not torch.is_grad_enabled():
        return _normed(x, weight, eps)[0]
    found: Tensor = _RmsNorm.apply(x, weight, eps)
    return found


def gated(gate_up: Tensor) -> Tensor:
    """[..., 2n] -> [..., n]: SiLU of the first half, times the second. What is given is used up."""
    if not torch.is_grad_enabled():
        gate, up = gate_up.chunk(2, -1)
        return torch.nn.functional.silu(gate).mul_(up)
    found: Tensor = _Gated.apply(gate_up)
    return found


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`x` turned by angles whose cosines and signed sines are given: the first half of `sin` carries a minus."""
    if not torch.is_grad_enabled():
        return (x * cos).addcmul_(x.roll(x.shape[-1] // 2, -1), sin)  # the same numbers, faster for few tokens
    found: Tensor = _Rotated.apply(x, cos, sin)
    return found


def _normed(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The result, and what each row was multiplied with."""
    wide = x if x.element_size() >= 4 else x.float()
    size = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    scale = torch.addcmul(_constant(eps, wide.dtype, x.device), size, size, value=1 / x.shape[-1]).rsqrt_()
    normed = (wide * scale).mul_(weight)
    return normed if normed.dtype is x.dtype else normed.to(x.dtype), scale


@cache
def _constant(value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A number as a tensor; as a plain number, most operations would wrap it anew in every call."""
    with torch.inference_mode(False):
        return torch.tensor(value, dtype=dtype, device=device)


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    turned = x * cos
    turned[..., :half].addcmul_(x[..., half:], sin[..., :half])
    turned[..., half:].addcmul_(x[..., :half], sin[..., half:])
    return turned


class _RmsNorm(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        normed, scale = _normed(x, weight, eps)
        ctx.save_for_backward(x, weight, scale)
        return normed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None]:
        x, weight, scale = ctx.saved_tensors
        unit, to_weight = x.to(scale.dtype) * scale, None
        through = gradient * unit
        if ctx.needs_input_grad[1]:
            by_row = through.reshape(-1, weight.numel())
            total = by_row.new_ones(1, len(by_row)) @ by_row  # a sum, at the speed of a product
            to_weight = total.view_as(weight).to(weight.dtype)
        wide = weight.to(scale.dtype)
        along = (through @ wide if wide.ndim == 1 else torch.linalg.vecdot(through, wide)).unsqueeze(-1)
        to_x = (gradient * weight).addcmul_(unit, along, value=-1 / x.shape[-1]).mul_(scale)
        return to_x.to(x.dtype), to_weight, None


class _Gated(Function):
    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        let, up = gate_up.chunk(2, -1)
        opened = let.sigmoid()
        let.mul_(opened)  # in the place of the gate, which nobody needs any more
        ctx.save_for_backward(gate_up, opened)
        return let * up

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        gate_up, opened = ctx.saved_tensors
        let, up = gate_up.chunk(2, -1)
        found = torch.empty_like(gate_up)
        to_gate, to_up = found.chunk(2, -1)
        torch.mul(gradient, let, out=to_up)
        # With s the sigmoid of the gate g, the slope of g s is s + g s (1 - s): from g s towards 1 by s.
        slope = torch.lerp(let, _constant(1.0, let.dtype, let.device), opened)
        torch.mul(slope.mul_(up), gradient, out=to_gate)
        return found


class _Rotated(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _turned(x, cos, sin)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _turned(gradient, cos, -sin), None, None
