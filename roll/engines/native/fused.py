"""Operations of a decoder with hand-written gradients: the same formulas, fewer passes over memory.

Autograd would compute each of them as a chain of small operations, and the exponential of a gate twice; on a CPU that
is a third of an update. Nothing here depends on models or sequences.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`x` divided by the root mean square of its last axis, times `weight`, which matches the last axes of `x`."""
    if not torch.is_grad_enabled():
        return _norm(x, weight, eps)[0]
    result: Tensor = _RmsNorm.apply(x, weight, eps)
    return result


def silu_gate(gate_up: Tensor) -> Tensor:
    """[..., 2n] -> [..., n]: SiLU of the first half, times the second. The input is overwritten."""
    if not torch.is_grad_enabled():
        gate, up = gate_up.chunk(2, -1)
        return torch.nn.functional.silu(gate).mul_(up)
    result: Tensor = _SiluGate.apply(gate_up)
    return result


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`x` rotated by angles with these cosines and signed sines: the first half of `sin` is negated."""
    if not torch.is_grad_enabled():
        return (x * cos).addcmul_(x.roll(x.shape[-1] // 2, -1), sin)  # bitwise equal, faster for few tokens
    result: Tensor = _Rotate.apply(x, cos, sin)
    return result


def _norm(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The result, and the factor of each row."""
    wide = x if x.element_size() >= 4 else x.float()
    size = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    scale = torch.addcmul(_constant(eps, wide.dtype, x.device), size, size, value=1 / x.shape[-1]).rsqrt_()
    normed = (wide * scale).mul_(weight)
    return normed if normed.dtype is x.dtype else normed.to(x.dtype), scale


@cache
def _constant(value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A number as a tensor; most operations would wrap a plain number in every call."""
    with torch.inference_mode(False):
        return torch.tensor(value, dtype=dtype, device=device)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    rotated = x * cos
    rotated[..., :half].addcmul_(x[..., half:], sin[..., :half])
    rotated[..., half:].addcmul_(x[..., :half], sin[..., half:])
    return rotated


class _RmsNorm(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        normed, scale = _norm(x, weight, eps)
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
            total = by_row.new_ones(1, len(by_row)) @ by_row  # a sum as a product, which is faster
            to_weight = total.view_as(weight).to(weight.dtype)
        wide = weight.to(scale.dtype)
        along = (through @ wide if wide.ndim == 1 else torch.linalg.vecdot(through, wide)).unsqueeze(-1)
        to_x = (gradient * weight).addcmul_(unit, along, value=-1 / x.shape[-1]).mul_(scale)
        return to_x.to(x.dtype), to_weight, None


class _SiluGate(Function):
    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, -1)
        sigmoid = gate.sigmoid()
        gate.mul_(sigmoid)  # in place: the gate itself is dead from here
        ctx.save_for_backward(gate_up, sigmoid)
        return gate * up

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        gate_up, sigmoid = ctx.saved_tensors
        activated, up = gate_up.chunk(2, -1)
        result = torch.empty_like(gate_up)
        to_gate, to_up = result.chunk(2, -1)
        torch.mul(gradient, activated, out=to_up)
        # With s the sigmoid of the gate g, the slope of g s is s + g s (1 - s): from g s towards 1 by s.
        slope = torch.lerp(activated, _constant(1.0, activated.dtype, activated.device), sigmoid)
        torch.mul(slope.mul_(up), gradient, out=to_gate)
        return result


class _Rotate(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _rotate(x, cos, sin)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _rotate(gradient, cos, -sin), None, None
