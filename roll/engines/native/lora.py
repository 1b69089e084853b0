"""Adapters beside the frozen matrices of a decoder: what a projection gives becomes x W + alpha / rank * x A B.

Trainer and generator compute with the same two thin matrices, nothing is ever added into the large one, so what is
attested is what is used. Those that read the same input lie side by side, as what they stand beside does; names and
shapes of Hugging Face and peft appear at the border only.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from roll.config.lora import Lora, rank_fault, widths
from roll.engines.native.decoder import Decoder, Geometry, Layer
from roll.errors import ConfigError
from roll.types import Digest
from roll.weights.adapters import read_adapter
from roll.weights.digest import added, digest

_FUSED = {
    "qkv": ("q_proj", "k_proj", "v_proj"),
    "out": ("o_proj",),
    "gate_up": ("gate_proj", "up_proj"),
    "down": ("down_proj",),
}
"""The matrices of a layer by their names there, and which projections lie in each."""
_MODULES = {"qkv": "self_attn", "out": "self_attn", "gate_up": "mlp", "down": "mlp"}


class Span(NamedTuple):
    """The columns of a fused matrix that are one projection."""

    name: str
    begin: int
    end: int


class Low(NamedTuple):
    """An adapter as plain values, for functions that are compiled."""

    a: Tensor
    b: tuple[Tensor, ...]
    spans: tuple[tuple[int, int], ...]
    scale: float


class Adapter(nn.Module):
    """What stands beside one fused matrix: A of all its targets side by side [in, rank * targets], a B for each."""

    def __init__(self, num_in: int, spans: Sequence[Span], lora: Lora) -> None:
        super().__init__()
        self.spans, self.rank, self.scale = tuple(spans), lora.rank, lora.scale
        self.a = nn.Parameter(torch.empty(num_in, lora.rank * len(spans), dtype=torch.float32))
        self.b = nn.ParameterList(
            [torch.zeros(lora.rank, span.end - span.begin, dtype=torch.float32) for span in spans]
        )

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """x W, with what the adapter adds in the columns of its targets."""
        low = self.low()
        if not torch.is_grad_enabled():
            return _projected(x, weight, bias, low)[0]
        found: Tensor = _Adapted.apply(x, weight, bias, low, low.a, *low.b)
        return found

    def low(self) -> Low:
        spans = tuple((span.begin, span.end) for span in self.spans)
        return Low(self.a, tuple(self.b), spans, self.scale)

    def pairs(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Of each target its name, A [rank, in] and B [out, rank], as views."""
        for number, (span, b) in enumerate(zip(self.spans, self.b, strict=True)):
            yield span.name, self.a[:, number * self.rank : (number + 1) * self.rank].t(), b.t()


def attach(decoder: Decoder, lora: Lora) -> Decoder:
    """The decoder with adapters that add nothing yet, and with all else frozen."""
    if decoder.score is not None:
        raise ConfigError("actor_train.lora: a model with a score has no adapters; train all of it")
    if fault := rank_fault(lora, _widths(decoder.shape)):
        raise ConfigError(f"actor_train.lora.rank: {fault}")
    decoder.requires_grad_(False)
    decoder.lora = lora
    for layer in decoder.layers:
        assert isinstance(layer, Layer)
        made = {name: _beside(name, decoder.shape, lora) for name in _FUSED}
        layer.adapters = nn.ModuleDict({name: each for name, each in made.items() if each is not None})
        layer.adapters.to(layer.qkv.device)
    return decoder


@torch.no_grad()
def begin(decoder: Decoder, seed: int) -> None:
    """Fill in adapters: those of a directory, where one is named; else random A and B of zeros."""
    lora = decoder.lora
    assert lora is not None
    if lora.path is not None:
        load_adapter(decoder, read_adapter(Path(lora.path), lora), where=lora.path)
        return
    noise = torch.Generator().manual_seed(seed)
    for name, tensor in adapter_tensors(decoder):
        if name.endswith("lora_A.weight"):
            bound = tensor.shape[1] ** -0.5
            tensor.copy_(torch.empty(tensor.shape).uniform_(-bound, bound, generator=noise))
        else:
            tensor.zero_()


def adapter_tensors(decoder: Decoder) -> Iterator[tuple[str, Tensor]]:
    """Views of all adapters by the names of what they stand beside, as peft names them without its own prefix."""
    for index, layer in enumerate(decoder.layers):
        assert isinstance(layer, Layer)
        for fused, adapter in layer.adapters.items() if layer.adapters is not None else ():
            assert isinstance(adapter, Adapter)
            for target, a, b in adapter.pairs():
                module = f"model.layers.{index}.{_MODULES[fused]}.{target}"
                yield f"{module}.lora_A.weight", a
                yield f"{module}.lora_B.weight", b


@torch.no_grad()
def load_adapter(decoder: Decoder, tensors: Iterable[tuple[str, Tensor]], *, where: str) -> None:
    """Copy adapters in by name; all of ours must come, and nothing else may."""
    mine = dict(adapter_tensors(decoder))
    missing = set(mine)
    for name, tensor in tensors:
        if name not in mine or mine[name].shape != tensor.shape:
            raise ConfigError(
                f"{where}: adapter {name} {tuple(tensor.shape)} does not fit the model; "
                "take it from a run with the same model and actor_train.lora"
            )
        mine[name].copy_(tensor)
        missing.discard(name)
    if missing:
        raise ConfigError(f"{where}: adapter {min(missing)} is missing ({len(missing)} in all); it is incomplete")


@torch.no_grad()
def merged(
    tensors: Iterable[tuple[str, Tensor]], adapter: dict[str, Tensor], scale: float
) -> Iterator[tuple[str, Tensor]]:
    """Weights by their Hugging Face names with what adapters add to each added in."""
    for name, tensor in tensors:
        module = name.removesuffix(".weight")
        a, b = (adapter.get(f"{module}.lora_{side}.weight") for side in "AB")
        if a is None or b is None:
            yield name, tensor
        else:
            yield name, torch.addmm(tensor.float(), b.float(), a.float(), alpha=scale).to(tensor.dtype)


def served(adapters: Iterable[tuple[str, Tensor]], scale: float, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Adapters as they are multiplied with: B with the number that the product would be multiplied with."""
    for name, tensor in adapters:
        plain = tensor.detach()
        yield name, (plain if name.endswith("lora_A.weight") else plain * scale).to(dtype)


def attested(decoder: Decoder, dtype: torch.dtype) -> Digest:
    """Of all that is computed with. What is frozen is counted the first time: nobody writes to it afterwards."""
    assert decoder.lora is not None
    held = served(adapter_tensors(decoder), decoder.lora.scale, dtype)
    return added([frozen_digest(decoder), digest(tensor for _, tensor in held)])


def frozen_digest(decoder: Decoder) -> Digest:
    """Of what adapters stand beside."""
    if decoder.frozen_digest is None:
        frozen = (parameter for name, parameter in decoder.named_parameters() if ".adapters." not in name)
        decoder.frozen_digest = digest(frozen)
    return decoder.frozen_digest


@contextmanager
def without(model: nn.Module) -> Generator[None]:
    """The model as if it had no adapters, inside this block, in which nobody else may compute with it."""
    found: list[Any] = [module for module in model.modules() if "adapted" in vars(module)]
    for module in found:
        module.adapted = False
    try:
        yield
    finally:
        for module in found:
            module.adapted = True


def _beside(fused: str, shape: Geometry, lora: Lora) -> Adapter | None:
    """For one matrix of a layer; None where nothing in it is a target."""
    sizes, at, spans = _widths(shape), 0, list[Span]()
    for name in _FUSED[fused]:
        end = at + sizes[name][1]
        if name in lora.targets:
            spans.append(Span(name, at, end))
        at = end
    return Adapter(sizes[_FUSED[fused][0]][0], spans, lora) if spans else None


def _widths(shape: Geometry) -> Any:
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    return widths(hidden=shape.hidden, q=q, kv=kv, mlp=shape.mlp)


def _projected(x: Tensor, weight: Tensor, bias: Tensor | None, low: Low) -> tuple[Tensor, Tensor]:
    """The result, and x A."""
    found = x @ weight if bias is None else torch.addmm(bias, x, weight)
    thin = x @ low.a
    for (first, end), part, b in zip(low.spans, thin.chunk(len(low.b), 1), low.b, strict=True):
        found[:, first:end].addmm_(part, b, alpha=low.scale)
    return found, thin


class _Adapted(Function):
    """With a gradient for x, A and B; there is none for what is frozen, and nothing is kept for one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, low: Low, a: Tensor, *b: Tensor) -> Tensor:
        found, thin = _projected(x, weight, bias, low)
        ctx.save_for_backward(x, weight, thin, a, *b)
        ctx.spans, ctx.scale = low.spans, low.scale
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, thin, a, *all_b = ctx.saved_tensors
        to_thin, to_b = list[Tensor](), list[Tensor]()
        for (first, end), part, b in zip(ctx.spans, thin.chunk(len(all_b), 1), all_b, strict=True):
            mine = gradient[:, first:end]
            to_thin.append(mine @ b.t())
            to_b.append((part.t() @ mine).mul_(ctx.scale))
        together = torch.cat(to_thin, 1).mul_(ctx.scale)
        to_x = torch.addmm(gradient @ weight.t(), together, a.t()) if ctx.needs_input_grad[0] else None
        return to_x, None, None, None, x.t() @ together, *to_b
