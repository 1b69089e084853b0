"""Parameters of Megatron-Core's blocks as tensors of Hugging Face files and back, one parameter at a time."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from roll.errors import ConfigError

_OUTSIDE = {
    "embedding.word_embeddings.weight": ("model.embed_tokens.weight", 0),
    "decoder.final_layernorm.weight": ("model.norm.weight", None),
    "output_layer.weight": ("lm_head.weight", 0),
}
VOCABULARY = ("model.embed_tokens.weight", "lm_head.weight")
"""Tensors with a row per token, which are padded to a multiple of the tensor-parallel ranks."""
SCORE = "score.weight"
_ATTENTION = {
    "linear_proj.weight": ("o_proj.weight", 1),
    "q_layernorm.weight": ("q_norm.weight", None),
    "k_layernorm.weight": ("k_norm.weight", None),
}
_LATENT = {
    "linear_proj.weight": ("o_proj.weight", 1),
    "linear_q_proj.weight": ("q_proj.weight", 0),
    "linear_q_down_proj.weight": ("q_a_proj.weight", None),
    "linear_q_up_proj.weight": ("q_b_proj.weight", 0),
    "linear_kv_down_proj.weight": ("kv_a_proj_with_mqa.weight", None),
    "linear_kv_up_proj.weight": ("kv_b_proj.weight", 0),
    "q_layernorm.weight": ("q_a_layernorm.weight", None),
    "kv_layernorm.weight": ("kv_a_layernorm.weight", None),
}
_NORMS = {
    "input_layernorm.weight": "input_layernorm.weight",
    "pre_mlp_layernorm.weight": "post_attention_layernorm.weight",
}
_SWIGLU = ("gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterSource:
    """The tensors of Hugging Face files that make up one parameter, and how tensor parallelism cuts them."""

    names: tuple[str, ...]
    dim: int | None
    """Dimension along which each of the tensors is cut; None: every rank has the whole tensor."""
    order: Literal["rows", "groups"] = "rows"
    """Parts are one below the other, or, of queries, keys and values, interleaved by groups of heads."""
    expert: bool = False
    """Whether it belongs to a routed expert, which has its own parallel groups."""

    def shard(self, parts: Sequence[Tensor], rank: int, size: int, groups: int) -> Tensor:
        """This rank's part of the parameter; of queries, keys and values there are `groups` groups in all."""
        if self.dim is not None and size > 1:
            parts = [part.chunk(size, self.dim)[rank] for part in parts]
        if self.order == "rows":
            return torch.cat(list(parts)) if len(parts) > 1 else parts[0]
        by_group = [part.unflatten(0, (groups // size, -1)) for part in parts]
        return torch.cat(by_group, 1).flatten(0, 1)

    def whole(self, shards: Sequence[Tensor], groups: int, rows: Sequence[int]) -> dict[str, Tensor]:
        """The tensors of the files, from the shards of all ranks; `rows` are those of each tensor, or of a group."""
        pieces = [self._pieces(shard, groups // len(shards), rows) for shard in shards]
        return {
            name: pieces[0][index] if self.dim is None else torch.cat([each[index] for each in pieces], self.dim)
            for index, name in enumerate(self.names)
        }

    def _pieces(self, shard: Tensor, groups: int, rows: Sequence[int]) -> list[Tensor]:
        if self.order == "groups":
            return [part.flatten(0, 1) for part in shard.unflatten(0, (groups, -1)).split(list(rows), 1)]
        return list(shard.chunk(len(self.names))) if len(self.names) > 1 else [shard]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterNames:
    """The names of one family."""

    latent: bool
    """Whether attention is latent (MLA), as in DeepSeek-V3."""
    mlp: str = "mlp"
    """Module with the experts and their router."""
    experts: tuple[str, str, str] = _SWIGLU
    """Gate, input and output of an expert."""
    scored: bool = False
    """Whether the output layer is a score head."""

    @classmethod
    def of(cls, model_type: str, *, scored: bool = False) -> ParameterNames:
        """The names of a family."""
        if model_type == "mixtral":
            return cls(latent=False, mlp="block_sparse_moe", experts=("w1", "w3", "w2"), scored=scored)
        return cls(latent=model_type == "deepseek_v3", scored=scored)

    def source(self, name: str, *, first_layer: int, first_expert: int) -> ParameterSource:
        """The source of a parameter or buffer of this rank, whose layers and experts begin at these."""
        if self.scored and name == "output_layer.weight":
            return ParameterSource(names=(SCORE,), dim=None)
        if name in _OUTSIDE:
            return ParameterSource(names=(_OUTSIDE[name][0],), dim=_OUTSIDE[name][1])
        match = re.fullmatch(r"decoder\.layers\.(\d+)\.(.+)", name)
        if match is None:
            raise ConfigError(
                f"model: parameter {name} of its blocks has no counterpart in files; choose another model"
            )
        layer, rest = f"model.layers.{int(match[1]) + first_layer}.", match[2]
        if rest in _NORMS:
            return ParameterSource(names=(layer + _NORMS[rest],), dim=None)
        kind, _, last = rest.partition(".")
        if kind == "self_attention":
            return self._attention(f"{layer}self_attn.", last)
        return self._mlp(layer, last, first_expert)

    def _attention(self, prefix: str, rest: str) -> ParameterSource:
        if rest.startswith("linear_qkv."):
            last = rest.rpartition(".")[2]
            return ParameterSource(names=tuple(f"{prefix}{each}_proj.{last}" for each in "qkv"), dim=0, order="groups")
        file_name, dim = (_LATENT if self.latent else _ATTENTION)[rest]
        return ParameterSource(names=(prefix + file_name,), dim=dim)

    def _mlp(self, layer: str, rest: str, first_expert: int) -> ParameterSource:
        if rest == "router.weight":
            return ParameterSource(names=(f"{layer}{self.mlp}.gate.weight",), dim=None)
        if rest == "router.expert_bias":
            return ParameterSource(names=(f"{layer}{self.mlp}.gate.e_score_correction_bias",), dim=None)
        if match := re.fullmatch(r"experts\.local_experts\.(\d+)\.(linear_fc[12])\.weight", rest):
            prefix = f"{layer}{self.mlp}.experts.{int(match[1]) + first_expert}."
            return _gated(prefix, self.experts, match[2], expert=True)
        prefix = f"{layer}mlp.shared_experts." if rest.startswith("shared_experts.") else f"{layer}mlp."
        return _gated(prefix, _SWIGLU, rest.removeprefix("shared_experts.").partition(".")[0], expert=False)


def _gated(prefix: str, parts: tuple[str, str, str], linear: str, *, expert: bool) -> ParameterSource:
    gate, up, down = (f"{prefix}{part}.weight" for part in parts)
    if linear == "linear_fc1":
        return ParameterSource(names=(gate, up), dim=0, expert=expert)
    return ParameterSource(names=(down,), dim=1, expert=expert)


def group_rows(config: Any) -> tuple[int, int, int]:
    """Rows of queries, keys and values per group of heads."""
    heads, groups = config.num_attention_heads, config.num_query_groups or config.num_attention_heads
    size = config.kv_channels
    return heads // groups * size, size, size


def pad_rows(tensor: Tensor, rows: int) -> Tensor:
    """A tensor with rows of zeros added up to this number."""
    missing = rows - len(tensor)
    return tensor if missing <= 0 else torch.cat([tensor, tensor.new_zeros(missing, *tensor.shape[1:])])


def read(tensors: Mapping[str, Any], name: str, where: str) -> Tensor:
    """A tensor of the files; raises `ConfigError` if there is none."""
    if name not in tensors:
        raise ConfigError(f"{where}: tensor {name} is missing; the weights are incomplete, or of another model")
    return tensors[name]
