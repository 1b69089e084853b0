"""Dimensions of a model, from which memory and time are estimated; read without torch or transformers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

from roll.config.decoder import engine_of
from roll.config.lora import Lora, Widths, widths
from roll.config.schema import SPECIAL_TOKENS, Model


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
    return Architecture(
        vocab=len(shape.alphabet) + len(SPECIAL_TOKENS),
        hidden=shape.hidden,
        layers=shape.layers,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.hidden // shape.heads,
        mlp=shape.mlp,
        tied=True,
    )


def _from_directory(model: Model, max_seq_len: int, count: Count | None) -> Architecture | None:
    """The architecture of a model directory, or of a well-known model with that name."""
    path = str(model.path)
    if not (Path(path) / "config.json").is_file():
        return _from_name(Path(path).name)
    config = read_values(path)
    if config is None:
        return None
    if count is not None and engine_of(config, model.engine, max_seq_len) == "hf":
        return count(path, model.trust_remote_code)
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
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None  # the engine that builds the model reports the error


_COLUMNS = ("vocab", "hidden", "layers", "heads", "kv_heads", "head_dim", "mlp", "tied")
_KNOWN: dict[str, tuple[Any, ...]] = {
    "SmolLM2-135M": (49152, 576, 30, 9, 3, 64, 1536, True),
    "SmolLM2-1.7B": (49152, 2048, 24, 32, 32, 64, 8192, True),
    "Qwen2.5-0.5B": (151936, 896, 24, 14, 2, 64, 4864, True),
    "Qwen2.5-1.5B": (151936, 1536, 28, 12, 2, 128, 8960, True),
    "Qwen2.5-3B": (151936, 2048, 36, 16, 2, 128, 11008, True),
    "Qwen2.5-7B": (152064, 3584, 28, 28, 4, 128, 18944, False),
    "Qwen2.5-14B": (152064, 5120, 48, 40, 8, 128, 13824, False),
    "Qwen2.5-32B": (152064, 5120, 64, 40, 8, 128, 27648, False),
    "Qwen2.5-72B": (152064, 8192, 80, 64, 8, 128, 29568, False),
    "Qwen3-0.6B": (151936, 1024, 28, 16, 8, 128, 3072, True),
    "Qwen3-1.7B": (151936, 2048, 28, 16, 8, 128, 6144, True),
    "Qwen3-4B": (151936, 2560, 36, 32, 8, 128, 9728, True),
    "Qwen3-8B": (151936, 4096, 36, 32, 8, 128, 12288, False),
    "Qwen3-14B": (151936, 5120, 40, 40, 8, 128, 17408, False),
    "Qwen3-32B": (151936, 5120, 64, 64, 8, 128, 25600, False),
    "Llama-3.2-1B": (128256, 2048, 16, 32, 8, 64, 8192, True),
    "Llama-3.2-3B": (128256, 3072, 28, 24, 8, 128, 8192, True),
    "Llama-3.1-8B": (128256, 4096, 32, 32, 8, 128, 14336, False),
    "Llama-3.1-70B": (128256, 8192, 80, 64, 8, 128, 28672, False),
}
"""Values of `_COLUMNS` from the config.json of each model."""


def _from_name(name: str) -> Architecture | None:
    """The known model whose name is `name` or a prefix of it, as of `Qwen2.5-7B-Instruct`; None if there is none.

    None also for names of mixtures of experts, such as `-MoE` or `-A3B`, which have other dimensions.
    """
    if re.search(r"-(moe|a\d+(\.\d+)?b)\b", name.lower()):
        return None
    known = next((known for known in _KNOWN if name == known or name.startswith(f"{known}-")), None)
    return None if known is None else Architecture(**dict(zip(_COLUMNS, _KNOWN[known], strict=True)))
