"""A decoder whose parameters are sharded over ranks; modules and parameters have their Hugging Face names.

The native decoder fuses projections that read the same input. Here each is separate, because a shard of a fused matrix
would not be a shard of any named tensor. The arithmetic is the same.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its customary name
from torch import Tensor, nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.checkpoint import checkpoint
from transformers import PretrainedConfig

from roll.config.lora import Lora
from roll.engines.fsdp.ranks import Ranks, attend_over_slices, reduce_backward
from roll.engines.fsdp.sharded import ShardedModel
from roll.engines.native.decoder import Attend, Decoder, Geometry
from roll.engines.native.fused import apply_rotary, rms_norm
from roll.engines.native.lora import AdaptedLinear, attach, is_adapter
from roll.engines.native.mixed import Precision
from roll.errors import ConfigError
from roll.weights.huggingface import classifier_config

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


class ShardedDecoder(ShardedModel):
    """The native decoder, sharded."""

    def __init__(
        self, config: PretrainedConfig, ranks: Ranks, *, scored: bool = False, lora: Lora | None = None
    ) -> None:
        super().__init__(classifier_config(config) if scored else config, ranks, lora)
        with torch.device("meta"):
            plain = Decoder(config, scored=scored)  # has no weights either, but real rotation tables
            if lora is not None:
                attach(plain, lora)  # raises if the adapter does not fit
            self.model = Body(plain.shape, lora)
            tied = plain.untied_head is None
            self.lm_head = None if tied else nn.Linear(plain.shape.hidden, plain.shape.vocab, bias=False)
            self.score = nn.Linear(plain.shape.hidden, 1, bias=False) if scored else None
        self.shape = plain.shape
        self.rotations = (plain.cos, plain.sin)  # not buffers, whose contents `to_empty` would lose
        _check_heads(plain.shape, ranks)
        if lora is not None:
            for name, parameter in self.named_parameters():
                parameter.requires_grad_(is_adapter(name))

    @property
    def head(self) -> Tensor:
        """[vocab, hidden]; whole from a forward pass until the end of the backward pass, or `reshard`."""
        return self.model.embed_tokens.weight if self.lm_head is None else self.lm_head.weight

    @property
    def score_weight(self) -> Tensor | None:
        """[1, hidden]; None for a language model."""
        return None if self.score is None else self.score.weight

    def shard(self, device: torch.device, precision: Precision) -> None:
        """Allocate this rank's shard; layers are gathered only while they are computed."""
        self.rotations = (self.rotations[0].to(device), self.rotations[1].to(device))
        for layer in self.model.layers:
            assert isinstance(layer, Block)
            layer.recompute = precision.checkpointing
            if self.ranks.tensor is not None:
                parallelize_module(layer, self.ranks.mesh["tp"], {name: kind() for name, kind in _SPLIT.items()})
                layer.self_attn.group = self.ranks.tensor
        self.allocate(self.model.layers, device, precision)

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
