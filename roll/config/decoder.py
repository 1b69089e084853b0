"""Models that the engines support, as functions of the contents of a model's config.json. Reads no file.

Values may come from the file or from `transformers`, which fills in defaults; both give the same result.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

_FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
_ROTARY = ("default", "linear", "llama3", "yarn")
_NUMBERS = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"),
    *("max_position_embeddings", "max_window_layers"),
)
_OPTIONAL_NUMBERS = ("num_key_value_heads", "head_dim", "sliding_window")
"""Numbers that may be null."""


_RECURRENT = (
    *("bamba", "falcon_h1", "falcon_mamba", "granitemoehybrid", "jamba", "kimi_linear", "mamba", "mamba2", "minimax"),
    *("nemotron_h", "olmo_hybrid", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next", "recurrent_gemma", "rwkv"),
    *("xlstm", "zamba", "zamba2"),
)
_OWN_ATTENTION = (
    *("bloom", "cpmant", "doge", "falcon", "granite_swa", "granitemoe_swa", "llama4_text", "moshi", "mpt"),
    *("openai-gpt", "opt", "trocr", "xglm"),
)
_OUTPUT_BIAS = ("codegen", "ctrl", "gptj", "phi")
_REFUSED = {
    **dict.fromkeys(_RECURRENT, "some of its layers keep a state along the sequence"),
    **dict.fromkeys(_OWN_ATTENTION, "its attention cannot be replaced by one over packed sequences"),
    **dict.fromkeys(_OUTPUT_BIAS, "its output layer has a bias"),
}
"""Families that `hf` cannot compute. Others that it cannot either are found when the model is built."""
NUM_CHOSEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "top_k_experts")
"""Keys of configs with the number of experts per token."""
_ATTENTION = ("full_attention", "sliding_attention", "attention")
"""Kinds of layers that `hf` computes. Others keep a state along the sequence, or choose what tokens attend to."""
_SWITCHING = ("longrope", "su")
"""Rotary scalings with two sets of frequencies: `transformers` takes the second where any sequence is long."""


def engine_of(config: Mapping[str, Any], chosen: str, max_seq_len: int) -> str:
    """The engine that computes such a model, `native` or `hf`; `chosen` may be `auto`."""
    return chosen if chosen != "auto" else "hf" if decoder_fault(config, max_seq_len) else "native"


def model_fault(config: Mapping[str, Any], chosen: str, max_seq_len: int) -> str:
    """Why the engine of such a model cannot load it and train on `max_seq_len` tokens with it; empty if it can."""
    if config.get("model_type") in _FAMILIES and (fault := _type_fault(config)):
        return f"{fault}; copy config.json again from the model"
    if config.get("quantization_config"):
        return "its weights are quantised, which cannot be trained; choose the original model"
    if engine_of(config, chosen, max_seq_len) == "native":
        return decoder_fault(config, max_seq_len)
    return _huggingface_fault(config, max_seq_len)


def positions(config: Mapping[str, Any]) -> float:
    """Most tokens per sequence that the model has positions for."""
    number = config.get("max_position_embeddings") or config.get("n_positions")
    return number if isinstance(number, int) else math.inf


def _huggingface_fault(config: Mapping[str, Any], max_seq_len: int) -> str:
    """What the file alone shows; transformers knows the rest."""
    kind = config.get("model_type")
    if kind in _REFUSED:
        return f"model_type {kind!r} is not supported: {_REFUSED[kind]}; choose another model"
    if config.get("is_encoder_decoder"):
        return "it has an encoder; choose a model with a decoder only"
    if others := set(config.get("layer_types") or ()) - set(_ATTENTION):
        return f"layers of {min(others)} are not supported; choose another model"
    if max_seq_len > (longest := positions(config)):
        return f"it has {longest:g} positions, and rollout.max_seq_len is {max_seq_len}; lower the latter"
    if max_seq_len > (longest := _shortest_switch(config)):
        return (
            f"its rotary frequencies change after {longest:g} tokens, for all sequences of a batch at once, and "
            f"rollout.max_seq_len is {max_seq_len}; lower the latter"
        )
    return ""


def _shortest_switch(config: Mapping[str, Any]) -> float:
    """Length after which sequences have other rotary frequencies; infinite for models with one set of them."""
    rotary: Any = config.get("rope_parameters") or config.get("rope_scaling")
    if not isinstance(rotary, Mapping):
        return math.inf
    values: list[Any] = [*cast(Mapping[str, Any], rotary).values()]
    by_layer: list[Any] = [each for each in values if isinstance(each, Mapping)] or [rotary]
    original = config.get("original_max_position_embeddings")
    lengths: list[Any] = [
        each.get("original_max_position_embeddings") or original
        for each in by_layer
        if each.get("rope_type", each.get("type")) in _SWITCHING
    ]
    known: list[int] = [each for each in lengths if isinstance(each, int)]
    return min(known, default=math.inf)


def decoder_fault(config: Mapping[str, Any], max_seq_len: int = 1) -> str:
    """Why the native decoder cannot load such a model and compute `max_seq_len` tokens with it; empty if it can."""
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
