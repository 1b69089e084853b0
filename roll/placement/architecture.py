"""Dimensions of a model, from which memory and time are estimated; read without torch or transformers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias, cast

from roll.config.decoder import engine_of
from roll.config.lora import Lora, Widths, widths
from roll.config.schema import SPECIAL_TOKENS, Model
from roll.placement.blocks import Blocks
from roll.placement.known import known_config


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCounts:
    """Numbers counted in the modules of a model, such as a mixture of experts."""

    parameters: int
    active_parameters: int
    """Parameters that one token uses: of the experts only those that it chooses."""
    expert_parameters: int
    """Parameters of all experts among which tokens choose."""
    layer_parameters: int
    """Parameters of the largest layer."""
    layer_row: int
    """Values per token that the backward pass of the largest layer needs."""
    score_bytes: int
    """Bytes per query and key, in one layer, of attention that stores its products; 0 for other attention."""
    kv_row: int
    """Values per token in the KV cache of the native generator, over all layers. It stores whole sequences, also in
    layers with a sliding window."""
    latent_row: int
    """Values per token in vLLM's cache of latent attention, over all layers; 0 for other attention."""
    linear: tuple[tuple[str, int], ...]
    """By name of a projection, its inputs plus outputs over all layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A decoder: one with gated feed-forward layers, or another with `counts`."""

    vocab: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    tied: bool = False
    """Whether the output layer shares the embedding's weights."""
    counts: ModelCounts | None = None
    """None: the formulas below describe the model."""
    blocks: Blocks | None = field(default=None, compare=False)
    """The model layer by layer; None if Megatron-Core cannot compute it."""

    @property
    def layer_parameters(self) -> int:
        """Parameters per layer, without the negligible biases and head norms."""
        if self.counts is not None:
            return self.counts.layer_parameters
        heads = self.heads + 2 * self.kv_heads
        attention = self.hidden * self.head_dim * heads + self.heads * self.head_dim * self.hidden
        return attention + 3 * self.hidden * self.mlp + 2 * self.hidden

    @property
    def parameters(self) -> int:
        """Parameters of the whole model."""
        if self.counts is not None:
            return self.counts.parameters
        ends = self.vocab * self.hidden * (1 if self.tied else 2)
        return ends + self.layers * self.layer_parameters + self.hidden

    @property
    def active_parameters(self) -> int:
        """Parameters that one token uses."""
        return self.parameters if self.counts is None else self.counts.active_parameters

    @property
    def expert_parameters(self) -> int:
        """Parameters of all experts among which tokens choose."""
        return 0 if self.counts is None else self.counts.expert_parameters

    def adapter_parameters(self, lora: Lora) -> int:
        """Parameters of the adapters of all layers."""
        if self.counts is None:
            return self.layers * lora.parameters(self.widths)
        return lora.rank * sum(width for name, width in self.counts.linear if name in lora.target_modules)

    @property
    def widths(self) -> Widths:
        """Widths of the projections of a layer."""
        return widths(hidden=self.hidden, q=self.heads * self.head_dim, kv=self.kv_heads * self.head_dim, mlp=self.mlp)

    @property
    def layer_row(self) -> int:
        """Values per token and layer that the backward pass needs: the inputs of every product and norm."""
        if self.counts is not None:
            return self.counts.layer_row
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return 4 * self.hidden + 3 * (q + kv) + 3 * self.mlp

    @property
    def score_bytes(self) -> int:
        """Bytes per query and key, in one layer, that attention stores."""
        return 0 if self.counts is None else self.counts.score_bytes

    def cache_row(self, backend: str) -> int:
        """Values per token in the KV cache of a backend, over all layers; an upper bound with sliding windows."""
        latent = 0 if self.counts is None else self.counts.latent_row
        return latent if latent and backend == "vllm" else self.kv_row

    @property
    def kv_row(self) -> int:
        """Values per token of keys and values, over all layers."""
        if self.counts is not None:
            return self.counts.kv_row
        return 2 * self.layers * self.kv_heads * self.head_dim


Count: TypeAlias = Callable[[str, bool], Architecture]
"""Counts the modules of the model in a directory; the flag is `trust_remote_code`."""


def architecture_of(model: Model, max_seq_len: int = 1, count: Count | None = None) -> Architecture | None:
    """The architecture from the configuration, the model's directory or its name; None if unknown.

    `count` describes models that the native decoder cannot compute, or not for `max_seq_len` tokens.
    """
    if model.shape is None:
        return _from_directory(model, max_seq_len, count)
    shape = model.shape
    return _from_config(
        {
            "model_type": shape.architecture,
            "vocab_size": len(shape.alphabet) + len(SPECIAL_TOKENS),
            "hidden_size": shape.hidden,
            "num_hidden_layers": shape.layers,
            "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.kv_heads,
            "intermediate_size": shape.mlp,
            "tie_word_embeddings": True,
        }
    )


def _from_directory(model: Model, max_seq_len: int, count: Count | None) -> Architecture | None:
    """The architecture of a model directory, or of a well-known model with that name."""
    path = str(model.path)
    if not (Path(path) / "config.json").is_file():
        config = known_config(Path(path).name)
        return None if config is None else _from_config(config) or architecture_of_mixture(config)
    config = read_values(path)
    if config is None:
        return None
    if count is not None and engine_of(config, model.engine, max_seq_len) == "hf":
        return replace(count(path, model.trust_remote_code), blocks=Blocks.of(config))
    return _from_config(config)


def read_values(path: str) -> dict[str, Any] | None:
    """The contents of the config.json of a model directory; None if it is not there or not readable."""
    try:
        config = json.loads((Path(path) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return cast("dict[str, Any]", config) if isinstance(config, dict) else None


def _from_config(config: dict[str, Any]) -> Architecture | None:
    """The architecture in a config.json; None if a key is missing or the model is of another kind, such as MoE."""
    try:
        if any(key.endswith("experts") for key in config):
            return None
        heads, hidden = config["num_attention_heads"], config["hidden_size"]
        return Architecture(
            vocab=config["vocab_size"],
            hidden=hidden,
            layers=config["num_hidden_layers"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or hidden // heads,
            mlp=config["intermediate_size"],
            tied=bool(config.get("tie_word_embeddings", False)),
            blocks=Blocks.of(config),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None  # the engine that builds the model reports the error


def architecture_of_mixture(config: dict[str, Any]) -> Architecture:
    """The architecture of a mixture of experts whose layers are known, from the contents of config.json alone."""
    blocks = Blocks.of(config)
    assert blocks is not None, "the families of known mixtures are known"
    layers, heads, latent = blocks.layers, config["num_attention_heads"], config.get("kv_lora_rank")
    key = config["qk_nope_head_dim"] + config["qk_rope_head_dim"] if latent else config["head_dim"]
    kv_heads, value = (heads, config["v_head_dim"]) if latent else (config["num_key_value_heads"], key)
    counts = ModelCounts(
        parameters=blocks.parameters,
        active_parameters=blocks.parameters - sum(each.experts - each.active_experts for each in layers),
        expert_parameters=sum(each.experts for each in layers),
        layer_parameters=max(each.parameters for each in layers),
        layer_row=max(each.row + each.copies for each in layers),
        score_bytes=0,
        kv_row=len(layers) * kv_heads * (key + value),
        latent_row=len(layers) * (latent + config["qk_rope_head_dim"]) if latent else 0,
        linear=_linear_widths(config, len(layers)),
    )
    return Architecture(
        vocab=blocks.vocab,
        hidden=blocks.hidden,
        layers=len(layers),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=key,
        mlp=config["intermediate_size"],
        tied=blocks.tied,
        counts=counts,
        blocks=blocks,
    )


def _linear_widths(config: dict[str, Any], layers: int) -> tuple[tuple[str, int], ...]:
    """`ModelCounts.linear` of Qwen3-MoE or DeepSeek-V3, whose routed experts and routers have no adapters."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    head = ("lm_head", hidden + config["vocab_size"])
    if not (rank := config.get("kv_lora_rank")):
        q, kv = heads * config["head_dim"], config["num_key_value_heads"] * config["head_dim"]
        sizes = {"q_proj": q, "k_proj": kv, "v_proj": kv, "o_proj": q}
        return (*((name, layers * (hidden + size)) for name, size in sizes.items()), head)
    q_rank, value, rotated = config["q_lora_rank"], config["v_head_dim"], config["qk_rope_head_dim"]
    dense, plain = config["first_k_dense_replace"], config["qk_nope_head_dim"]
    widths = {
        "q_a_proj": hidden + q_rank,
        "q_b_proj": q_rank + heads * (plain + rotated),
        "kv_a_proj_with_mqa": hidden + rank + rotated,
        "kv_b_proj": rank + heads * (plain + value),
        "o_proj": heads * value + hidden,
    }
    shared = config["moe_intermediate_size"] * config["n_shared_experts"]
    mlp = dense * (hidden + config["intermediate_size"]) + (layers - dense) * (hidden + shared)
    ends = [(name, mlp) for name in ("gate_proj", "up_proj", "down_proj")]
    return (*((name, layers * width) for name, width in widths.items()), *ends, head)
