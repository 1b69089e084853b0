"""A decoder whose parameters are sharded over ranks; modules and parameters have their Hugging Face names.

The native decoder fuses projections that read the same input. Here each is separate, because a shard of a fused matrix
would not be a shard of any named tensor. The arithmetic is the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - its customary name
from torch import Tensor, nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.checkpoint import checkpoint
from transformers import PretrainedConfig

from roll.config.lora import Lora
from roll.engines.fsdp.ranks import Ranks, attend_over_slices, reduce_backward
from roll.engines.native.decoder import Attend, Decoder, Geometry
from roll.engines.native.fused import apply_rotary, rms_norm
from roll.engines.native.lora import attach
from roll.engines.native.mixed import Precision
from roll.errors import ConfigError
from roll.weights.digest import Digest

_SPLIT = {
    "self_attn.q_proj": ColwiseParallel,
    "self_attn.k_proj": ColwiseParallel,
    "self_attn.v_proj": ColwiseParallel,
    "self_attn.o_proj": RowwiseParallel,
    "mlp.gate_proj": ColwiseParallel,
    "mlp.up_proj": ColwiseParallel,
    "mlp.down_proj": RowwiseParallel,
}
"""Layers that tensor parallelism shards, by rows or by columns; all others are replicated."""


class Norm(nn.Module):
    """RMS norm over the last axis."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: Tensor, group: Any = None) -> Tensor:
        """With a `group`, each member normalises its own heads with the same weight."""
        weight = reduce_backward(self.weight, group)
        if x.dtype == torch.float32:
            return rms_norm(x, weight, self.eps)
        return F.rms_norm(x, weight.shape, weight, self.eps)


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


def _linear(name: str, num_in: int, num_out: int, *, bias: bool = False, lora: Lora | None) -> nn.Linear:
    if lora is None or name not in lora.target_modules:
        return nn.Linear(num_in, num_out, bias=bias)
    return AdaptedLinear(num_in, num_out, bias=bias, lora=lora)


class Attention(nn.Module):
    """Attention with the heads of this rank."""

    def __init__(self, shape: Geometry, lora: Lora | None = None) -> None:
        super().__init__()
        self.dim, self.group = shape.head_dim, None
        q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.q_proj = _linear("q_proj", shape.hidden, q, bias=shape.qkv_bias, lora=lora)
        self.k_proj = _linear("k_proj", shape.hidden, kv, bias=shape.qkv_bias, lora=lora)
        self.v_proj = _linear("v_proj", shape.hidden, kv, bias=shape.qkv_bias, lora=lora)
        self.q_norm = Norm(shape.head_dim, shape.eps) if shape.qk_norm else None
        self.k_norm = Norm(shape.head_dim, shape.eps) if shape.qk_norm else None
        self.o_proj = _linear("o_proj", q, shape.hidden, bias=shape.out_bias, lora=lora)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Any) -> Tensor:
        q, k, v = (each(x).view(len(x), -1, self.dim) for each in (self.q_proj, self.k_proj, self.v_proj))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q, self.group), self.k_norm(k, self.group)
        return self.o_proj(attend(apply_rotary(q, cos, sin), apply_rotary(k, cos, sin), v))


class Mlp(nn.Module):
    """The gated feed-forward network."""

    def __init__(self, shape: Geometry, lora: Lora | None = None) -> None:
        super().__init__()
        self.gate_proj = _linear("gate_proj", shape.hidden, shape.mlp, lora=lora)
        self.up_proj = _linear("up_proj", shape.hidden, shape.mlp, lora=lora)
        self.down_proj = _linear("down_proj", shape.mlp, shape.hidden, lora=lora)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    """One layer: attention, then a gated feed-forward network, each with a residual connection."""

    def __init__(self, shape: Geometry, lora: Lora | None = None) -> None:
        super().__init__()
        self.recompute = False
        self.input_layernorm = Norm(shape.hidden, shape.eps)
        self.self_attn = Attention(shape, lora)
        self.post_attention_layernorm = Norm(shape.hidden, shape.eps)
        self.mlp = Mlp(shape, lora)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Any) -> Tensor:
        if self.recompute and torch.is_grad_enabled():
            return checkpoint(self._run, x, cos, sin, attend, use_reentrant=False)
        return self._run(x, cos, sin, attend)

    def _run(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Any) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, attend)
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nn.Module):
    """Everything but the head."""

    def __init__(self, shape: Geometry, lora: Lora | None = None) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.layers = nn.ModuleList([Block(shape, lora) for _ in range(shape.layers)])
        self.norm = Norm(shape.hidden, shape.eps)


class ShardedDecoder(nn.Module):
    """A model of which this rank holds a shard. It is created without memory: `shard` allocates, `fill` loads."""

    def __init__(
        self, config: PretrainedConfig, ranks: Ranks, *, scored: bool = False, lora: Lora | None = None
    ) -> None:
        super().__init__()
        self.lora = lora
        self.frozen_digest: Digest | None = None
        """Digest of this rank's part of the frozen weights, computed on first use."""
        with torch.device("meta"):
            plain = Decoder(config, scored=scored)  # has no weights either, but real rotation tables
            if lora is not None:
                attach(plain, lora)  # raises if the adapter does not fit
            self.model = Body(plain.shape, lora)
            tied = plain.untied_head is None
            self.lm_head = None if tied else nn.Linear(plain.shape.hidden, plain.shape.vocab, bias=False)
            self.score = nn.Linear(plain.shape.hidden, 1, bias=False) if scored else None
        self.config, self.shape, self.ranks = config, plain.shape, ranks
        self.rotations = (plain.cos, plain.sin)  # not buffers, whose contents `to_empty` would lose
        self.device = torch.device("cpu")
        _check_heads(plain.shape, ranks)
        if lora is not None:
            for name, parameter in self.named_parameters():
                parameter.requires_grad_(_is_adapter(name))

    @property
    def head(self) -> Tensor:
        """[vocab, hidden]; whole from a forward pass until the end of the backward pass, or `reshard`."""
        return self.model.embed_tokens.weight if self.lm_head is None else self.lm_head.weight

    def shard(self, device: torch.device, precision: Precision) -> None:
        """Allocate this rank's shard; layers are gathered only while they are computed."""
        ranks, offload = self.ranks, self.ranks.layout.offload
        self.device, self.rotations = device, (self.rotations[0].to(device), self.rotations[1].to(device))
        if self.lora is not None and precision.dtype is not None:
            for parameter in self.parameters():
                if not parameter.requires_grad:  # frozen, so it needs no more precision than the computation
                    parameter.data = parameter.data.to(precision.dtype)
        options: dict[str, Any] = {
            "mesh": ranks.mesh["shard"],
            "mp_policy": MixedPrecisionPolicy(param_dtype=precision.dtype, reduce_dtype=torch.float32),
            "offload_policy": CPUOffloadPolicy(pin_memory=device.type == "cuda") if offload else OffloadPolicy(),
        }
        for layer in self.model.layers:
            assert isinstance(layer, Block)
            layer.recompute = precision.checkpointing
            if ranks.tensor is not None:
                parallelize_module(layer, ranks.mesh["tp"], {name: kind() for name, kind in _SPLIT.items()})
                layer.self_attn.group = ranks.tensor
            fully_shard(layer, **options)
        fully_shard(self, **options)
        for module in self.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)  # a sum: token weights include the denominator
                module.set_force_sum_reduction_for_comms(True)
        self.to_empty(device="cpu" if offload else device)

    def forward(self, ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """[tokens] ids at [tokens] positions -> [slice, hidden], normalised; `slice_of` says which tokens."""
        first, size = self.slice_of(len(ids))
        if self.ranks.context is not None:
            attend = attend_over_slices(attend, self.ranks.context, len(ids))
            missing = size * self.ranks.layout.cp - len(ids)
            ids, positions = (F.pad(row, (0, missing))[first : first + size] for row in (ids, positions))
        cos, sin = (table[positions].unsqueeze(1) for table in self.rotations)
        x = self.model.embed_tokens(ids)
        for index, layer in enumerate(self.model.layers):
            x = layer(x, cos, sin, partial(attend, index))
        return self.model.norm(x)

    def slice_of(self, num_tokens: int) -> tuple[int, int]:
        """The first token that this rank computes, and how many; the last ones may be padding."""
        size = -(-num_tokens // self.ranks.layout.cp)
        return self.ranks.cp_rank * size, size

    @torch.no_grad()
    def fill(self, tensors: Mapping[str, Tensor], *, adapters: bool | None = None) -> None:
        """Receive the weights that rank 0 passes by name; `tensors` of other ranks are ignored.

        `adapters`: True for adapters only, False for everything else, None for both.
        """
        for name, parameter in self._sharded_parameters(adapters=adapters):
            if self.ranks.rank == 0:
                whole = tensors[name].to(self.device, parameter.dtype).contiguous()
            else:
                whole = torch.empty(parameter.shape, dtype=parameter.dtype, device=self.device)
            dist.broadcast(whole, 0)
            dim, layout = tp_dim(parameter), self.ranks.layout
            if dim is not None:
                whole = _piece(whole, dim, layout.tp, self.ranks.tp_rank)
            parameter.to_local().copy_(_piece(whole, 0, layout.size // layout.tp, self.ranks.shard))

    @torch.no_grad()
    def named_tensors(self, *, adapters: bool = False) -> Iterator[tuple[str, Tensor]]:
        """Every parameter, or every adapter, whole, one by one, on every rank: all ranks must iterate to the end."""
        for name, parameter in self._sharded_parameters(adapters=adapters):
            yield name, parameter.detach().to(self.device).full_tensor()

    def local_parts(self, *, adapters: bool = False) -> Iterator[tuple[str, Tensor]]:
        """This rank's shards; those replicated over tensor-parallel ranks come from the first of them only."""
        for name, parameter in self._sharded_parameters(adapters=adapters):
            if self.ranks.tp_rank == 0 or tp_dim(parameter) is not None:
                yield name, parameter.detach().to_local()

    def _sharded_parameters(self, *, adapters: bool | None = None) -> list[tuple[str, Any]]:
        parameters = [each for each in self.named_parameters() if adapters is None or _is_adapter(each[0]) == adapters]
        assert all(isinstance(parameter, DTensor) for _, parameter in parameters), "reshard after every forward pass"
        return parameters


def _is_adapter(name: str) -> bool:
    return ".lora_" in name


def tp_dim(parameter: DTensor) -> int | None:
    """The dimension that tensor parallelism shards; None if the parameter is replicated."""
    if parameter.device_mesh.ndim == 1:
        return None
    placement: Any = parameter.placements[1]
    return placement.dim if placement.is_shard() else None


def _piece(whole: Tensor, dim: int, parts: int, index: int) -> Tensor:
    """The piece of the rank with this index; empty if there are more ranks than rows."""
    pieces = whole.chunk(parts, dim)
    return pieces[index] if index < len(pieces) else whole.narrow(dim, 0, 0)


def _check_heads(shape: Geometry, ranks: Ranks) -> None:
    parts = ranks.layout.tp * ranks.layout.cp
    for what, number in (("attention heads", shape.heads), ("key and value heads", shape.kv_heads)):
        if number % parts:
            raise ConfigError(
                f"actor_train.parallel: {number} {what} are not divisible by tp {ranks.layout.tp} times "
                f"cp {ranks.layout.cp}; lower one of them"
            )
    if shape.mlp % ranks.layout.tp:
        raise ConfigError(
            f"actor_train.parallel.tp: an MLP of width {shape.mlp} is not divisible by {ranks.layout.tp}; lower it"
        )
