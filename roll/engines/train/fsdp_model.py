"""A decoder whose parameters are spread over ranks: modules and parameters have the names that Hugging Face gives them.

The native decoder fuses projections that read the same input; here each stands alone, since a shard of a fused one
would be none of any tensor that has a name. The arithmetic is the same.
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

from roll.engines.decoder import Attend, Decoder, Geometry
from roll.engines.fused import rms_norm, rotated
from roll.engines.mixed import Reading
from roll.engines.train.fsdp_ranks import Ranks, shared, sliced
from roll.errors import ConfigError

_SPLIT = {
    "self_attn.q_proj": ColwiseParallel,
    "self_attn.k_proj": ColwiseParallel,
    "self_attn.v_proj": ColwiseParallel,
    "self_attn.o_proj": RowwiseParallel,
    "mlp.gate_proj": ColwiseParallel,
    "mlp.up_proj": ColwiseParallel,
    "mlp.down_proj": RowwiseParallel,
}
"""Layers that tensor-parallel ranks share, by rows or by columns; all else is the same on each of them."""


class Norm(nn.Module):
    """RMS norm over the last axis."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: Tensor, group: Any = None) -> Tensor:
        """With a `group`, each of whose members norms heads of its own with the same weight."""
        weight = shared(self.weight, group)
        if x.dtype == torch.float32:
            return rms_norm(x, weight, self.eps)
        return F.rms_norm(x, weight.shape, weight, self.eps)


class Attention(nn.Module):
    """Queries, keys and values of the heads that are here."""

    def __init__(self, shape: Geometry) -> None:
        super().__init__()
        self.dim, self.group = shape.head_dim, None
        q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.hidden, q, bias=shape.qkv_bias)
        self.k_proj = nn.Linear(shape.hidden, kv, bias=shape.qkv_bias)
        self.v_proj = nn.Linear(shape.hidden, kv, bias=shape.qkv_bias)
        self.q_norm = Norm(shape.head_dim, shape.eps) if shape.qk_norm else None
        self.k_norm = Norm(shape.head_dim, shape.eps) if shape.qk_norm else None
        self.o_proj = nn.Linear(q, shape.hidden, bias=shape.out_bias)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Any) -> Tensor:
        q, k, v = (each(x).view(len(x), -1, self.dim) for each in (self.q_proj, self.k_proj, self.v_proj))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q, self.group), self.k_norm(k, self.group)
        return self.o_proj(attend(rotated(q, cos, sin), rotated(k, cos, sin), v))


class Mlp(nn.Module):
    """The gated feed-forward."""

    def __init__(self, shape: Geometry) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.mlp, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.mlp, bias=False)
        self.down_proj = nn.Linear(shape.mlp, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    """One layer: attention, then a gated feed-forward, each added to what came in."""

    def __init__(self, shape: Geometry) -> None:
        super().__init__()
        self.recompute = False
        self.input_layernorm = Norm(shape.hidden, shape.eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = Norm(shape.hidden, shape.eps)
        self.mlp = Mlp(shape)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Any) -> Tensor:
        if self.recompute and torch.is_grad_enabled():
            return checkpoint(self._added, x, cos, sin, attend, use_reentrant=False)
        return self._added(x, cos, sin, attend)

    def _added(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Any) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, attend)
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nn.Module):
    """All but the head."""

    def __init__(self, shape: Geometry) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.layers = nn.ModuleList([Block(shape) for _ in range(shape.layers)])
        self.norm = Norm(shape.hidden, shape.eps)


class SpreadDecoder(nn.Module):
    """A whole model of which this rank holds a part. It is made without memory: `spread` gives some, `fill` weights."""

    def __init__(self, config: PretrainedConfig, ranks: Ranks, *, scored: bool = False) -> None:
        super().__init__()
        with torch.device("meta"):
            plain = Decoder(config, scored=scored)  # has no weights either, but its rotations are real
            self.model = Body(plain.shape)
            tied = plain.untied_head is None
            self.lm_head = None if tied else nn.Linear(plain.shape.hidden, plain.shape.vocab, bias=False)
            self.score = nn.Linear(plain.shape.hidden, 1, bias=False) if scored else None
        self.config, self.shape, self.ranks = config, plain.shape, ranks
        self.rotations = (plain.cos, plain.sin)  # no buffers: what those hold is lost when memory is given
        self.device = torch.device("cpu")
        _check_heads(plain.shape, ranks)

    @property
    def head(self) -> Tensor:
        """[vocab, hidden]; whole from a forward pass on until the end of the backward pass, or `reshard`."""
        return self.model.embed_tokens.weight if self.lm_head is None else self.lm_head.weight

    def spread(self, device: torch.device, reading: Reading) -> None:
        """Give every rank memory for its part, and let layers be whole only while they are computed with."""
        ranks, offload = self.ranks, self.ranks.spread.offload
        self.device, self.rotations = device, (self.rotations[0].to(device), self.rotations[1].to(device))
        how: dict[str, Any] = {
            "mesh": ranks.mesh["shard"],
            "mp_policy": MixedPrecisionPolicy(param_dtype=reading.dtype, reduce_dtype=torch.float32),
            "offload_policy": CPUOffloadPolicy(pin_memory=device.type == "cuda") if offload else OffloadPolicy(),
        }
        for layer in self.model.layers:
            assert isinstance(layer, Block)
            layer.recompute = reading.checkpointing
            if ranks.tensor is not None:
                parallelize_module(layer, ranks.mesh["tp"], {name: kind() for name, kind in _SPLIT.items()})
                layer.self_attn.group = ranks.tensor
            fully_shard(layer, **how)
        fully_shard(self, **how)
        for module in self.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)  # a sum: the weights of tokens carry the one denominator
                module.set_force_sum_reduction_for_comms(True)
        self.to_empty(device="cpu" if offload else device)

    def forward(self, ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """[tokens] ids at [tokens] positions -> [slice, hidden], normed: `slice_of` says which tokens are in it."""
        first, size = self.slice_of(len(ids))
        if self.ranks.context is not None:
            attend = sliced(attend, self.ranks.context, len(ids))
            missing = size * self.ranks.spread.cp - len(ids)
            ids, positions = (F.pad(row, (0, missing))[first : first + size] for row in (ids, positions))
        cos, sin = (table[positions].unsqueeze(1) for table in self.rotations)
        x = self.model.embed_tokens(ids)
        for index, layer in enumerate(self.model.layers):
            x = layer(x, cos, sin, partial(attend, index))
        return self.model.norm(x)

    def slice_of(self, num_tokens: int) -> tuple[int, int]:
        """The first of so many tokens that is computed here, and how many are; the last ones may not exist."""
        size = -(-num_tokens // self.ranks.spread.cp)
        return self.ranks.cp_rank * size, size

    @torch.no_grad()
    def fill(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over the weights that rank 0 has by name; what the others give is not read."""
        for name, parameter in self._parameters_here():
            if self.ranks.rank == 0:
                whole = tensors[name].to(self.device, parameter.dtype).contiguous()
            else:
                whole = torch.empty(parameter.shape, dtype=parameter.dtype, device=self.device)
            dist.broadcast(whole, 0)
            dim, spread = split_dim(parameter), self.ranks.spread
            if dim is not None:
                whole = _piece(whole, dim, spread.tp, self.ranks.tp_rank)
            parameter.to_local().copy_(_piece(whole, 0, spread.size // spread.tp, self.ranks.shard))

    @torch.no_grad()
    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every parameter whole, one after the other, on every rank: all of them must go through it to the end."""
        for name, parameter in self._parameters_here():
            yield name, _plain(parameter).to(self.device).full_tensor()

    def own_parts(self) -> Iterator[Tensor]:
        """What is held here and nowhere else; of what tensor-parallel ranks have alike, the first of them speaks."""
        for _, parameter in self._parameters_here():
            if self.ranks.tp_rank == 0 or split_dim(parameter) is not None:
                yield _plain(parameter).to_local()

    def _parameters_here(self) -> list[tuple[str, DTensor]]:
        found = list(self.named_parameters())
        assert all(isinstance(parameter, DTensor) for _, parameter in found), "reshard after every forward pass"
        return found  # pyright: ignore[reportReturnType] - all are


def split_dim(parameter: DTensor) -> int | None:
    """Along which dimension tensor-parallel ranks share it; None where each has all of it."""
    if parameter.device_mesh.ndim == 1:
        return None
    placement: Any = parameter.placements[1]
    return placement.dim if placement.is_shard() else None


def _plain(parameter: DTensor) -> Any:
    """The same numbers, of no interest to autograd."""
    return parameter.detach()


def _piece(whole: Tensor, dim: int, parts: int, index: int) -> Tensor:
    """What the rank with this index holds; nothing, where there are more ranks than rows."""
    pieces = whole.chunk(parts, dim)
    return pieces[index] if index < len(pieces) else whole.narrow(dim, 0, 0)


def _check_heads(shape: Geometry, ranks: Ranks) -> None:
    parts = ranks.spread.tp * ranks.spread.cp
    for what, number in (("attention heads", shape.heads), ("heads of keys and values", shape.kv_heads)):
        if number % parts:
            raise ConfigError(
                f"actor_train.parallel: {number} {what} do not divide by tp {ranks.spread.tp} times "
                f"cp {ranks.spread.cp}; lower one of them"
            )
    if shape.mlp % ranks.spread.tp:
        raise ConfigError(
            f"actor_train.parallel.tp: a feed-forward of {shape.mlp} does not divide by {ranks.spread.tp}; lower it"
        )
