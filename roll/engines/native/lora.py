"""LoRA adapters on the frozen matrices of a decoder: a projection returns x W + alpha / rank * x A B.

Trainer and generator compute with the same two thin matrices and never merge them into the large one, so the digest
covers what is used. Adapters that read the same input lie side by side, like the fused matrices they belong to. Names
and shapes of Hugging Face and peft appear at the boundary only.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

import torch
import torch.nn.functional as F  # noqa: N812 - its customary name
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from roll.config.lora import Lora, native_fault, rank_fault, widths
from roll.engines.native.decoder import Decoder, Geometry, Layer
from roll.errors import ConfigError
from roll.weights.adapters import read_adapter
from roll.weights.digest import Digest, combine, digest, published_tensors

_FUSED = {
    "qkv": ("q_proj", "k_proj", "v_proj"),
    "out": ("o_proj",),
    "gate_up": ("gate_proj", "up_proj"),
    "down": ("down_proj",),
}
"""The fused matrices of a layer, and the projections in each."""


class Adapted(Protocol):
    """A model with adapters."""

    lora: Lora | None
    frozen_digest: Digest | None

    def adapter_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Views of all adapters, named after their projections as peft does, without peft's prefix."""
        ...

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...


class AdapterTensors(NamedTuple):
    """An adapter as plain values, for compiled functions."""

    a: Tensor
    b: tuple[Tensor, ...]
    spans: tuple[tuple[int, int], ...]
    """For each target, its first column in the fused matrix and the end of its columns."""
    scale: float


class Adapter(nn.Module):
    """Adapter of one fused matrix: A of all its targets side by side [in, rank * targets], and one B per target."""

    def __init__(self, num_in: int, spans: dict[str, tuple[int, int]], lora: Lora) -> None:
        """`spans` are those of `AdapterTensors`, by the names of the targets."""
        super().__init__()
        self.spans, self.rank, self.scale = spans, lora.rank, lora.scale
        self.a = nn.Parameter(torch.empty(num_in, lora.rank * len(spans), dtype=torch.float32))
        widths = [end - begin for begin, end in spans.values()]
        self.b = nn.ParameterList([torch.zeros(lora.rank, width, dtype=torch.float32) for width in widths])

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """x W plus the adapter's output in the columns of its targets."""
        tensors = self.tensors()
        if not torch.is_grad_enabled():
            return _project(x, weight, bias, tensors)[0]
        result: Tensor = _LoraProjection.apply(x, weight, bias, tensors, tensors.a, *tensors.b)
        return result

    def tensors(self) -> AdapterTensors:
        return AdapterTensors(self.a, tuple(self.b), tuple(self.spans.values()), self.scale)

    def pairs(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        """For each target its name, A [rank, in] and B [out, rank], as views."""
        for number, (name, b) in enumerate(zip(self.spans, self.b, strict=True)):
            yield name, self.a[:, number * self.rank : (number + 1) * self.rank].t(), b.t()


class AdaptedLinear(nn.Linear):
    """A frozen projection with two trained thin ones added."""

    def __init__(self, num_in: int, num_out: int, *, bias: bool, lora: Lora) -> None:
        super().__init__(num_in, num_out, bias=bias)
        self.lora_A = nn.Linear(num_in, lora.rank, bias=False)
        self.lora_B = nn.Linear(lora.rank, num_out, bias=False)
        self.scale, self.adapted = lora.scale, True

    def forward(self, x: Tensor) -> Tensor:
        result = super().forward(x)
        if not self.adapted:
            return result
        return result + F.linear(F.linear(x, self.lora_A.weight), self.lora_B.weight * self.scale)

    @classmethod
    def around(cls, linear: nn.Linear, lora: Lora) -> AdaptedLinear:
        """The same projection with a zero adapter, in place of `linear`."""
        with torch.device("meta"):
            adapted = cls(linear.in_features, linear.out_features, bias=linear.bias is not None, lora=lora)
        adapted.weight, adapted.bias = linear.weight, linear.bias
        for thin in (adapted.lora_A, adapted.lora_B):
            thin.weight = nn.Parameter(torch.zeros(thin.weight.shape, device=linear.weight.device))
        return adapted


def attach(decoder: Decoder, lora: Lora) -> Decoder:
    """The decoder with zero adapters added and everything else frozen."""
    if decoder.score is not None:
        raise ConfigError("actor_train.lora: models with a score head have no adapters; remove it to train all weights")
    if fault := native_fault(lora):
        raise ConfigError(f"actor_train.lora.target_modules: {fault}")
    if fault := rank_fault(lora, _widths(decoder.shape)):
        raise ConfigError(f"actor_train.lora.rank: {fault}")
    decoder.requires_grad_(False)
    decoder.lora = lora
    for layer in decoder.layers:
        assert isinstance(layer, Layer)
        adapters = {name: _adapter(name, decoder.shape, lora) for name in _FUSED}
        layer.adapters = nn.ModuleDict({name: each for name, each in adapters.items() if each is not None})
        layer.adapters.to(layer.qkv.device)
    return decoder


@torch.no_grad()
def initialise(decoder: Adapted, seed: int) -> None:
    """Load adapters from `lora.path` if it is set; otherwise random A and B of zeros."""
    lora = decoder.lora
    assert lora is not None
    if lora.path is not None:
        load_adapter(decoder, read_adapter(Path(lora.path), lora), where=lora.path)
        return
    noise = torch.Generator().manual_seed(seed)
    for name, tensor in decoder.adapter_tensors():
        if name.endswith("lora_A.weight"):
            bound = tensor.shape[1] ** -0.5
            tensor.copy_(torch.empty(tensor.shape).uniform_(-bound, bound, generator=noise))
        else:
            tensor.zero_()


@torch.no_grad()
def load_adapter(decoder: Adapted, tensors: Iterable[tuple[str, Tensor]], *, where: str) -> None:
    """Copy adapters in by name; the names must match exactly."""
    targets = dict(decoder.adapter_tensors())
    missing = set(targets)
    for name, tensor in tensors:
        if name not in targets or targets[name].shape != tensor.shape:
            raise ConfigError(
                f"{where}: adapter {name} {tuple(tensor.shape)} does not fit the model; "
                "take it from a run with the same model and actor_train.lora"
            )
        targets[name].copy_(tensor)
        missing.discard(name)
    if missing:
        raise ConfigError(f"{where}: adapter {min(missing)} is missing ({len(missing)} in all); it is incomplete")


@torch.no_grad()
def merge(
    tensors: Iterable[tuple[str, Tensor]], adapter: dict[str, Tensor], scale: float
) -> Iterator[tuple[str, Tensor]]:
    """Weights by their Hugging Face names, with adapters merged in."""
    for name, tensor in tensors:
        module = name.removesuffix(".weight")
        a, b = (adapter.get(f"{module}.lora_{side}.weight") for side in "AB")
        if a is None or b is None:
            yield name, tensor
        else:
            yield name, torch.addmm(tensor.float(), b.float(), a.float(), alpha=scale).to(tensor.dtype)


def as_served(adapters: Iterable[tuple[str, Tensor]], scale: float, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Adapters as the computation uses them: B multiplied by the scale."""
    for name, tensor in adapters:
        plain = tensor.detach()
        yield name, (plain if name.endswith("lora_A.weight") else plain * scale).to(dtype)


def digest_served(decoder: Adapted, dtype: torch.dtype) -> Digest:
    """Digest of all weights in use. That of frozen weights is computed once, because they never change."""
    assert decoder.lora is not None
    adapters = as_served(decoder.adapter_tensors(), decoder.lora.scale, dtype)
    return combine([frozen_digest(decoder), digest(tensor for _, tensor in adapters)])


def frozen_digest(decoder: Adapted) -> Digest:
    """Digest of the frozen weights."""
    if decoder.frozen_digest is None:
        frozen = (tensor for name, tensor in published_tensors(cast(nn.Module, decoder)) if not is_adapter(name))
        decoder.frozen_digest = digest(frozen)
    return decoder.frozen_digest


def is_adapter(name: str) -> bool:
    """Whether a parameter of this name belongs to an adapter."""
    return ".adapters." in name or ".lora_" in name


@contextmanager
def without_adapters(model: nn.Module) -> Generator[None]:
    """Disable the model's adapters inside this block, in which no other code may compute with the model."""
    modules: list[Any] = [module for module in model.modules() if "adapted" in vars(module)]
    for module in modules:
        module.adapted = False
    try:
        yield
    finally:
        for module in modules:
            module.adapted = True


def _adapter(fused: str, shape: Geometry, lora: Lora) -> Adapter | None:
    """The adapter of one matrix of a layer; None if it contains no target."""
    sizes, at, spans = _widths(shape), 0, dict[str, tuple[int, int]]()
    for name in _FUSED[fused]:
        end = at + sizes[name][1]
        if name in lora.target_modules:
            spans[name] = (at, end)
        at = end
    return Adapter(sizes[_FUSED[fused][0]][0], spans, lora) if spans else None


def _widths(shape: Geometry) -> Any:
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    return widths(hidden=shape.hidden, q=q, kv=kv, mlp=shape.mlp)


def _project(x: Tensor, weight: Tensor, bias: Tensor | None, adapter: AdapterTensors) -> tuple[Tensor, Tensor]:
    """The result, and x A."""
    result = x @ weight if bias is None else torch.addmm(bias, x, weight)
    thin = x @ adapter.a
    for (first, end), part, b in zip(adapter.spans, thin.chunk(len(adapter.b), 1), adapter.b, strict=True):
        result[:, first:end].addmm_(part, b, alpha=adapter.scale)
    return result, thin


class _LoraProjection(Function):
    """Gradients for x, A and B only; nothing is stored for frozen weights."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, adapter: AdapterTensors, a: Tensor, *b: Tensor
    ) -> Tensor:
        result, thin = _project(x, weight, bias, adapter)
        ctx.save_for_backward(x, weight, thin, a, *b)
        ctx.spans, ctx.scale = adapter.spans, adapter.scale
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, thin, a, *all_b = ctx.saved_tensors
        to_thin, to_b = list[Tensor](), list[Tensor]()
        for (first, end), part, b in zip(ctx.spans, thin.chunk(len(all_b), 1), all_b, strict=True):
            columns = gradient[:, first:end]
            to_thin.append(columns @ b.t())
            to_b.append((part.t() @ columns).mul_(ctx.scale))
        together = torch.cat(to_thin, 1).mul_(ctx.scale)
        to_x = torch.addmm(gradient @ weight.t(), together, a.t()) if ctx.needs_input_grad[0] else None
        return to_x, None, None, None, x.t() @ together, *to_b
