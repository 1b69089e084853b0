"""Hand-written gradients, compared with autograd's in double precision."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its customary name
from torch import Tensor

from roll.engines.native.fused import apply_rotary, rms_norm, silu_gate


def normed_by_autograd(x: Tensor, weight: Tensor) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight


def gated_by_autograd(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


def rotated_by_autograd(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return x * cos + x.roll(x.shape[-1] // 2, -1) * sin


def random(*size: int) -> Tensor:
    return torch.randn(size, dtype=torch.float64, requires_grad=True)


def agree(ours: Tensor, theirs: Tensor, inputs: list[Tensor]) -> None:
    torch.testing.assert_close(ours, theirs)
    pull = torch.randn_like(ours)
    result = torch.autograd.grad(ours, inputs, pull)
    torch.testing.assert_close(result, torch.autograd.grad(theirs, inputs, pull))


def test_a_norm_has_the_value_and_gradients_of_its_formula() -> None:
    x, weight = random(7, 12), random(12)
    agree(rms_norm(x, weight, 1e-5), normed_by_autograd(x, weight), [x, weight])


def test_a_norm_takes_a_weight_for_each_head() -> None:
    x, weight = random(7, 3, 12), random(3, 12)
    agree(rms_norm(x, weight, 1e-5), normed_by_autograd(x, weight), [x, weight])


def test_a_norm_of_zeros_is_zero_and_its_gradient_is_finite() -> None:
    x = torch.zeros(2, 4, requires_grad=True)
    result = rms_norm(x, torch.ones(4), 1e-5)
    result.sum().backward()
    assert result.eq(0).all()
    assert x.grad is not None and x.grad.isfinite().all()


def test_a_gate_has_the_value_and_gradient_of_its_formula_far_from_zero_too() -> None:
    x = (torch.randn(9, 16, dtype=torch.float64) * 30).requires_grad_()
    agree(silu_gate(x.clone()), gated_by_autograd(x), [x])


def test_using_an_overwritten_gate_input_again_is_an_error() -> None:
    x = torch.randn(3, 4, requires_grad=True)
    needed = x.exp()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        silu_gate(needed).sum().backward()


def test_a_rotation_is_undone_by_its_gradient() -> None:
    x, angle = random(5, 3, 8), torch.randn(5, 1, 4, dtype=torch.float64)
    cos, sin = torch.cat([angle.cos()] * 2, -1), torch.cat([-angle.sin(), angle.sin()], -1)
    agree(apply_rotary(x, cos, sin), rotated_by_autograd(x, cos, sin), [x])
    turned = apply_rotary(x, cos, sin)
    torch.testing.assert_close(torch.autograd.grad(turned, x, turned)[0], x)


def test_all_functions_give_the_same_result_without_gradients() -> None:
    x, weight = torch.randn(6, 8), torch.randn(8)
    angle = torch.randn(6, 4)
    cos, sin = torch.cat([angle.cos()] * 2, -1), torch.cat([-angle.sin(), angle.sin()], -1)
    tracked = x.clone().requires_grad_()
    with torch.no_grad():
        normed, opened, turned = rms_norm(x, weight, 1e-5), silu_gate(x), apply_rotary(x, cos, sin)
    torch.testing.assert_close(normed, rms_norm(tracked, weight, 1e-5).detach())
    torch.testing.assert_close(opened, silu_gate(tracked.clone()).detach())
    torch.testing.assert_close(turned, apply_rotary(tracked, cos, sin).detach())


def test_low_precision_is_computed_in_float32() -> None:
    x = torch.full((1, 1024), 300.0, dtype=torch.float16)  # the sum of squares is past what float16 holds
    assert rms_norm(x, torch.ones(1024, dtype=torch.float16), 1e-5).eq(1).all()
