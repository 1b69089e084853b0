"""Products of a projection in fp8: the gradient of the input, and on demand the forward pass.

The gradient of the weights has 16 bits, and so has the forward pass by default: rounding it is most of the error.

Both factors are rounded to e4m3 (4 significant bits) with one scale per row of the left and per column of the right
factor, so that a row of zeros or of large values changes no other row. Sums have 32 bits. Gradients have e4m3 too: the
scale of a row covers their range, and e5m2 would double the rounding error.

A GPU multiplies fp8 matrices only if both store the summed dimension contiguously. The gradient of the weights sums
over tokens: both factors would be transposed and rounded a second time, which takes longer than it saves.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from transformers import PretrainedConfig

from roll.engines.native.decoder import Geometry, geometry
from roll.errors import ConfigError

FORMAT = torch.float8_e4m3fn
LARGEST = torch.finfo(FORMAT).max
MULTIPLE = 16
"""Both dimensions of a matrix are multiples of it; the number of tokens need not be."""
LEAST_SIZE = 560
"""Of `size`: with less, rounding the factors takes longer than the product saves.

Per token a matrix saves 4 x in x out operations at 767 instead of about 1,300 TFLOP/s, and at most reads twice and
writes once in + out values: 5 bytes each, at 4.2 TB/s (one H200). The two are equal at a size of 553.
"""
CAPABILITY = (8, 9)
"""The first compute capability with fp8 products."""
_WHERE = "actor_train.fp8_products"


def size(num_in: int, num_out: int) -> float:
    """in * out / (in + out): operations of a product per value of its factors."""
    return num_in * num_out / (num_in + num_out)


class Fp8(NamedTuple):
    """Which products of a model are computed in fp8."""

    forward: bool = False
    """Whether those of the forward pass are, in addition to gradients of inputs."""
    least_size: float = LEAST_SIZE
    """Least `size` of a projection with products in fp8."""


def product(x: Tensor, weight: Tensor, forward: bool) -> Tensor:
    """[tokens, in] @ [in, out] in the dtype of `x`; the weight is rounded to that dtype, and then to fp8."""
    result: Tensor = _NarrowProduct.apply(x, weight, forward)
    return result


class _NarrowProduct(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, narrow: bool) -> Tensor:
        ctx.save_for_backward(x, weight)
        rounded = weight.to(x.dtype)
        return _multiply(x, rounded.t()) if narrow else x @ rounded

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        to_x = _multiply(gradient, weight.to(x.dtype))
        return to_x, (x.t() @ gradient).to(weight.dtype), None


def _multiply(left: Tensor, right: Tensor) -> Tensor:
    """[rows, inner] @ [columns, inner].T in the dtype of `left`."""
    (narrow, scale), (other, other_scale) = quantise(left), quantise(right)
    if not left.is_cuda:
        return emulate(narrow, scale, other, other_scale).to(left.dtype)
    kernel: Any = torch.ops.aten._scaled_mm.default
    return kernel(narrow, other.t(), scale, other_scale.t(), out_dtype=left.dtype, use_fast_accum=True)


def emulate(narrow: Tensor, scale: Tensor, other: Tensor, other_scale: Tensor) -> Tensor:
    """The product of two quantised matrices in 32 bits, where there is no kernel for it."""
    return (narrow.float() @ other.float().t()) * scale * other_scale.t()


def quantise(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The rows as contiguous fp8 values, and [rows, 1] scales in 32 bits that they are multiplied with.

    The largest value of a row becomes the largest of the format; a row of zeros stays one. NaN and infinity stay NaN.
    """
    wide = rows.float()
    scale = (wide.abs().amax(-1, keepdim=True) / LARGEST).clamp_min(torch.finfo(torch.float32).tiny)
    return (wide / scale).clamp(-LARGEST, LARGEST).to(FORMAT).contiguous(), scale


def projections(shape: Geometry) -> dict[str, tuple[int, int]]:
    """The matrices of a layer as [in, out], as they are stored."""
    heads, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    return {
        "q, k and v": (shape.hidden, heads + 2 * kv),
        "o": (heads, shape.hidden),
        "gate and up": (shape.hidden, 2 * shape.mlp),
        "down": (shape.mlp, shape.hidden),
    }


def check_model(config: PretrainedConfig, engine: str) -> None:
    """Raise `ConfigError` if a model computed by this engine has no fp8 products."""
    if engine != "native":
        raise ConfigError(f"{_WHERE}: only the native decoder has them (got model.engine {engine}); leave it out")
    matrices = projections(geometry(config))
    for name, (num_in, num_out) in matrices.items():
        if num_in % MULTIPLE or num_out % MULTIPLE:
            raise ConfigError(
                f"{_WHERE}: dimensions of projections must be multiples of {MULTIPLE} (got {num_in} x {num_out} for "
                f"{name}); leave it out"
            )
    largest = max(size(*each) for each in matrices.values())
    if largest < LEAST_SIZE:
        raise ConfigError(
            f"{_WHERE}: no projection of this model is large enough to gain (got at most {largest:.0f} for "
            f"in x out / (in + out), needed {LEAST_SIZE}); leave it out"
        )


def check_device(device: torch.device, key: str) -> None:
    """Raise `ConfigError` if a device has no fp8 products; `key` names it in the configuration."""
    if device.type != "cuda":
        raise ConfigError(f"{_WHERE}: needs a GPU (got {key} on {device.type}); leave it out")
    if (capability := torch.cuda.get_device_capability(device)) < CAPABILITY:
        got, needed = (".".join(map(str, each)) for each in (capability, CAPABILITY))
        raise ConfigError(f"{_WHERE}: needs a GPU of compute capability {needed} (got {got} for {key}); leave it out")
