"""Families of models that vLLM loads or computes otherwise than `transformers`, and what makes both agree."""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

from transformers import PretrainedConfig

from roll.weights.digest import digest

_WITHOUT_LOADER = re.compile(r"\.(sinks|experts\.(gate_up|down)_proj(_bias)?)$")


def config_overrides(config: PretrainedConfig) -> dict[str, Any]:
    """Values of the config that vLLM has to read differently.

    Releases of vLLM differ: for Cohere 2, newer ones attend to one token more than the sliding window of
    `transformers`, which the trainer has.
    """
    if config.model_type != "cohere2" or config.sliding_window is None:
        return {}
    models: Any = importlib.import_module("vllm.model_executor.models.commandr")
    adds_one = "sliding_window + 1" in inspect.getsource(models.CohereAttention)
    return {"sliding_window": config.sliding_window - 1} if adds_one else {}


def cpu_arguments(config: PretrainedConfig) -> dict[str, Any]:
    """Engine arguments for the CPU.

    vLLM's rotary kernel for the CPU reads queries [tokens, heads, size] with the stride of a head as that of a token.
    Latent attention (DeepSeek, Moonlight) has such queries, and gets the same function in PyTorch instead. Its backend
    for AMX has weights in 16 bits only.
    """
    if getattr(config, "kv_lora_rank", None) is None:
        return {}
    return {
        "attention_config": {"backend": "CPU_MLA"},
        "compilation_config": {"custom_ops": ["-rotary_embedding"]},
    }


def repeats_projection(module: Any) -> bool:
    """Whether a module of vLLM holds copies of another module's weights, which must not count twice in a digest.

    Latent attention keeps `kv_b_proj` in two parts for decoding. If these are stale, they are no copies, and count.
    """
    parts = [part for name in ("W_UK_T", "W_UV") if (part := getattr(module, name, None)) is not None]
    return bool(parts) and digest(parts) == digest([module.kv_b_proj.weight])


def is_lost_on_reload(name: str) -> bool:
    """Whether vLLM's `reload_weights` discards this tensor without an error.

    While it runs, parameters have no memory, and only weight loaders keep what they are called with. GPT-OSS copies
    attention sinks and the experts of a layer directly.
    """
    return _WITHOUT_LOADER.search(name) is not None
