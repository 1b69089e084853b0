"""Models that all trainers support, as functions of the contents of a model's config.json. Reads no file.

Values may come from the file or from `transformers`, which fills in defaults; both give the same result.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

_FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
_ROTARY = ("default", "linear", "llama3", "yarn")
_NUMBERS = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"),
    *("max_position_embeddings", "max_window_layers"),
)
_OPTIONAL_NUMBERS = ("num_key_value_heads", "head_dim", "sliding_window")
"""Numbers that may be null."""


def decoder_fault(config: Mapping[str, Any], max_seq_len: int = 1) -> str:
    """Why no trainer can load such a model and train on `max_seq_len` tokens with it; empty if all can."""
    kind = config.get("model_type")
    if kind not in _FAMILIES:
        return f"model_type {kind!r} is not supported; choose a model with {', '.join(_FAMILIES)}"
    if fault := _type_fault(config):
        return f"{fault}; copy config.json again from the model"
    if config.get("hidden_act", "silu") != "silu" or config.get("mlp_bias"):
        return "only SwiGLU layers without bias are supported; choose another model"
    if others := set(config.get("layer_types") or ()) - {"full_attention", "sliding_attention"}:
        return f"layers of {min(others)} are not supported; choose another model"
    if fault := _rotary_fault(config):
        return fault
    if max_seq_len > (longest := longest_sequence(config)):
        limit = "sliding window" if longest == _window(config) else "number of positions"
        return f"its {limit} is {longest:g} tokens, and rollout.max_seq_len is {max_seq_len}; lower the latter"
    return ""


def longest_sequence(config: Mapping[str, Any]) -> float:
    """Most tokens per sequence: the model's positions, within its sliding window, which trainers do not apply."""
    return min(config.get("max_position_embeddings", math.inf), _window(config) or math.inf)


def _type_fault(config: Mapping[str, Any]) -> str:
    """Which value has a wrong type; empty if none has."""
    wrong = [key for key in _NUMBERS if not isinstance(config.get(key, 0), int)]
    wrong += [key for key in _OPTIONAL_NUMBERS if not isinstance(config.get(key), int | None)]
    if wrong:
        return f"{wrong[0]} is not a whole number (got {config[wrong[0]]!r})"
    wrong = [key for key in ("rope_parameters", "rope_scaling") if not isinstance(config.get(key), Mapping | None)]
    return f"{wrong[0]} is not an object (got {config[wrong[0]]!r})" if wrong else ""


def _rotary_fault(config: Mapping[str, Any]) -> str:
    rotary: Mapping[str, Any] = config.get("rope_parameters") or config.get("rope_scaling") or {}
    scaling = rotary.get("rope_type", rotary.get("type", "default"))
    if scaling not in _ROTARY:
        return f"rotary scaling {scaling!r} is not supported; choose a model with {', '.join(_ROTARY)}"
    factor = rotary.get("partial_rotary_factor", config.get("partial_rotary_factor", 1))
    if factor != 1:
        return f"only rotation of whole heads is supported (got partial_rotary_factor {factor}); choose another model"
    return ""


def _window(config: Mapping[str, Any]) -> int | None:
    """Length of the sliding window of any layer; None if all layers attend to the whole sequence."""
    window = config.get("sliding_window", 4096)  # the default of transformers
    if config["model_type"] == "mistral":
        return window
    if layers := config.get("layer_types"):
        return window if set(layers) != {"full_attention"} else None
    windowed = config.get("num_hidden_layers", 0) > config.get("max_window_layers", 28)
    return window if windowed and config.get("use_sliding_window") else None
