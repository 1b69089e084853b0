"""Parameters and activations of models that Megatron-Core computes, layer by layer, from config.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from roll.config.megatron import FAMILIES, num_experts

_NORM, _HEAD_NORM, _GATED, _EXPERT_COPIES = 3, 2, 4, 2
"""Values kept per width of a norm, of a norm of heads and of a feed-forward layer, and hidden states per expert."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSize:
    """One layer, or the sum of several."""

    divided: int
    """Parameters that tensor-parallel ranks divide."""
    whole: int
    """Parameters that each of them has: norms, routers, projections to latent vectors."""
    experts: int
    """Parameters of all routed experts."""
    active_experts: int
    """Parameters of the experts that one token chooses."""
    row: int
    """Values per token that the backward pass needs, without `copies`."""
    copies: int
    """Values per token of the hidden states that move to experts and back, in one direction each."""
    attended: int
    """Products per token and earlier token of attention."""
    heads_row: int
    """Values per token that context-parallel ranks exchange."""

    @property
    def parameters(self) -> int:
        return self.divided + self.whole + self.experts


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSize:
    """The layers of one pipeline stage, added up, and what is in front of and behind them."""

    num_layers: int
    num_sparse: int
    """Layers with experts."""
    layers: LayerSize
    largest: LayerSize
    """The layer that keeps the most values per token."""
    first: bool
    last: bool


@dataclass(frozen=True, eq=False, kw_only=True)
class Blocks:
    """A model of a family that Megatron-Core computes."""

    config: Mapping[str, Any]
    """The contents of config.json."""
    vocab: int
    hidden: int
    tied: bool
    layers: tuple[LayerSize, ...]

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Blocks | None:
        """The blocks of a config.json; None if the family is not known or a key is missing."""
        if config.get("model_type") not in FAMILIES:
            return None
        try:
            return cls(
                config=config,
                vocab=config["vocab_size"],
                hidden=config["hidden_size"],
                tied=bool(config.get("tie_word_embeddings", False)),
                layers=tuple(_layers(config)),
            )
        except (KeyError, TypeError, ValueError, ZeroDivisionError):
            return None  # the engine that builds the model reports the error

    @property
    def parameters(self) -> int:
        """Parameters of the whole model."""
        ends = self.vocab * self.hidden * (1 if self.tied else 2) + self.hidden
        return ends + sum(layer.parameters for layer in self.layers)

    def stages(self, pp: int) -> tuple[StageSize, ...]:
        """The stages of a pipeline with equally many layers each."""
        return _stages(self, pp)

    def stage_kinds(self, pp: int) -> tuple[tuple[int, StageSize], ...]:
        """The stages that differ from all before them, with their numbers."""
        return _stage_kinds(self, pp)

    def dense_parameters(self, stage: StageSize, tp: int, *, single: bool) -> int:
        """Parameters of a rank without those of experts. `single`: there is one stage, which shares tied embeddings."""
        ends = -(-self.vocab // tp) * self.hidden
        num = ends * stage.first + (ends * (not (self.tied and single)) + self.hidden) * stage.last
        return stage.layers.divided // tp + stage.layers.whole + num


@cache
def _stages(blocks: Blocks, pp: int) -> tuple[StageSize, ...]:
    size = len(blocks.layers) // pp
    return tuple(
        _stage(blocks.layers[index * size : (index + 1) * size], first=index == 0, last=index == pp - 1)
        for index in range(pp)
    )


@cache
def _stage_kinds(blocks: Blocks, pp: int) -> tuple[tuple[int, StageSize], ...]:
    first: dict[StageSize, int] = {}
    for index, stage in enumerate(_stages(blocks, pp)):
        first.setdefault(stage, index)
    return tuple((index, stage) for stage, index in first.items())


def _stage(layers: tuple[LayerSize, ...], *, first: bool, last: bool) -> StageSize:
    return StageSize(
        num_layers=len(layers),
        num_sparse=sum(layer.experts > 0 for layer in layers),
        layers=LayerSize(**{name: sum(getattr(each, name) for each in layers) for name in LayerSize.__slots__}),
        largest=max(layers, key=lambda layer: layer.row + layer.copies),
        first=first,
        last=last,
    )


def _layers(config: Mapping[str, Any]) -> Iterator[LayerSize]:
    hidden, experts = config["hidden_size"], num_experts(config)
    attention = _latent_attention(config) if config["model_type"] == "deepseek_v3" else _attention(config)
    divided, whole, row, attended, heads_row = attention
    row, whole = row + 2 * _NORM * hidden, whole + 2 * hidden
    common = {"attended": attended, "heads_row": heads_row}
    for sparse in sparse_layers(config):
        if not sparse:
            width = config["intermediate_size"]
            yield LayerSize(
                divided=divided + 3 * hidden * width,
                whole=whole,
                experts=0,
                active_experts=0,
                row=row + _GATED * width,
                copies=0,
                **common,
            )
            continue
        width, chosen = (
            config.get("moe_intermediate_size") or config["intermediate_size"],
            min(_chosen(config), experts),
        )
        shared = width * (config.get("n_shared_experts") or 0)
        yield LayerSize(
            divided=divided + 3 * hidden * shared,
            whole=whole + experts * hidden,
            experts=3 * hidden * width * experts,
            active_experts=3 * hidden * width * chosen,
            row=row + _GATED * (shared + chosen * width) + 2 * experts,
            copies=_EXPERT_COPIES * chosen * hidden,
            **common,
        )


def _chosen(config: Mapping[str, Any]) -> int:
    return int(config["num_experts_per_tok"])


def _attention(config: Mapping[str, Any]) -> tuple[int, int, int, int, int]:
    """Divided and whole parameters, values per token, products per pair of tokens, and values to exchange."""
    hidden, heads, kind = config["hidden_size"], config["num_attention_heads"], config["model_type"]
    size = config.get("head_dim") or hidden // heads
    q, kv = heads * size, (config.get("num_key_value_heads") or heads) * size
    normed = kind.startswith("qwen3")
    divided = hidden * (q + 2 * kv) + q * hidden + (q + 2 * kv) * (kind == "qwen2")
    row = 2 * (q + kv) + _HEAD_NORM * (q + kv) * normed
    return divided, 2 * size * normed, row, 2 * q, 2 * (q + kv)


def _latent_attention(config: Mapping[str, Any]) -> tuple[int, int, int, int, int]:
    """As `_attention`; keys and values are projections of one latent vector per token."""
    hidden, heads, q_rank = config["hidden_size"], config["num_attention_heads"], config.get("q_lora_rank")
    rank, rotated = config["kv_lora_rank"], config["qk_rope_head_dim"]
    key, value = config["qk_nope_head_dim"] + rotated, config["v_head_dim"]
    q = heads * key
    divided = (q_rank or hidden) * q + rank * heads * (config["qk_nope_head_dim"] + value) + heads * value * hidden
    whole = hidden * (rank + rotated) + rank + (hidden * q_rank + q_rank if q_rank else 0)
    row = 2 * (q + heads * (key + value) // 2) + _NORM * (rank + (q_rank or 0))
    return divided, whole, row, heads * (key + value), 2 * q + 2 * heads * value


def sparse_layers(config: Mapping[str, Any]) -> list[bool]:
    """For each layer whether it has experts."""
    layers = range(config["num_hidden_layers"])
    if not num_experts(config):
        return [False for _ in layers]
    if config["model_type"] == "deepseek_v3":
        return [layer >= config.get("first_k_dense_replace", 0) for layer in layers]
    step: int = config.get("decoder_sparse_step") or 1
    listed: Any = config.get("mlp_only_layers")
    dense: set[int] = set(listed or [])
    return [layer not in dense and (layer + 1) % step == 0 for layer in layers]
