"""Dimensions of well-known models by name, for plans on machines without their files."""

from __future__ import annotations

import re
from typing import Any

_COLUMNS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "tie_word_embeddings",
)
_DENSE: dict[str, tuple[Any, ...]] = {
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
_FAMILIES = {"SmolLM2": "llama", "Llama": "llama", "Qwen2.5": "qwen2", "Qwen3": "qwen3"}
_QWEN3_MOE: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "vocab_size": 151936,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
}
_MIXTURES: dict[str, dict[str, Any]] = {
    "Qwen3-30B-A3B": {
        **_QWEN3_MOE,
        "hidden_size": 2048,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
    },
    "Qwen3-235B-A22B": {
        **_QWEN3_MOE,
        "hidden_size": 4096,
        "num_hidden_layers": 94,
        "num_attention_heads": 64,
        "intermediate_size": 12288,
        "moe_intermediate_size": 1536,
    },
    "DeepSeek-V3": {
        "model_type": "deepseek_v3",
        "vocab_size": 129280,
        "hidden_size": 7168,
        "num_hidden_layers": 61,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "n_group": 8,
        "topk_group": 4,
        "first_k_dense_replace": 3,
    },
}
"""Mixtures of experts, likewise."""


def known_config(name: str) -> dict[str, Any] | None:
    """Dimensions as in config.json of the model of this name, or of a prefix, as of `Qwen2.5-7B-Instruct`; else None.

    None also for other mixtures of experts, such as `-MoE` or `-A3B`, which have other dimensions.
    """
    mixture = next((values for known, values in _MIXTURES.items() if _names(known, name)), None)
    if mixture is not None:
        return dict(mixture)
    if re.search(r"-(moe|a\d+(\.\d+)?b)\b", name.lower()):
        return None
    known = next((known for known in _DENSE if _names(known, name)), None)
    if known is None:
        return None
    return {"model_type": _FAMILIES[known.split("-")[0]], **dict(zip(_COLUMNS, _DENSE[known], strict=True))}


def _names(known: str, name: str) -> bool:
    return name == known or name.startswith(f"{known}-")
