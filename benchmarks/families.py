"""Small models of many families, from their configs alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

COMMON: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
_HEADS, _WINDOW = {"head_dim": 32}, {"sliding_window": 8}
_GRANITE = {"logits_scaling": 4.0, "embedding_multiplier": 3.0, "residual_multiplier": 0.5, "attention_multiplier": 0.1}
_DEEPSEEK = {
    "num_key_value_heads": 4,
    "q_lora_rank": 32,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 64,
    "v_head_dim": 32,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "rope_parameters": _YARN,
}
FAMILIES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "Llama 3": ("llama", {"rope_parameters": _LLAMA3, **_HEADS}),
    "Qwen2": ("qwen2", {}),
    "Qwen3": ("qwen3", _HEADS),
    "Mistral": ("mistral", _HEADS | _WINDOW),
    "Gemma 2": ("gemma2", {"query_pre_attn_scalar": 32, **_HEADS, **_WINDOW}),
    "Gemma 3": ("gemma3_text", {"query_pre_attn_scalar": 32, **_HEADS, **_WINDOW}),
    "Phi-3": ("phi3", {}),
    "GLM-4": ("glm4", _HEADS),
    "OLMo 2": ("olmo2", {}),
    "Granite": ("granite", _GRANITE),
    "SmolLM3": ("smollm3", {}),
    "Cohere 2": ("cohere2", _WINDOW),
    "Qwen3-MoE": (
        "qwen3_moe",
        {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True, **_HEADS},
    ),
    "Mixtral": ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "DeepSeek-V3": ("deepseek_v3", _DEEPSEEK),
    "GPT-OSS": ("gpt_oss", {"num_local_experts": 4, "num_experts_per_tok": 2, **_HEADS, **_WINDOW}),
}
"""By the names people use: `model_type`, and what the config sets besides `COMMON`. Windows are short."""


def family_config(name: str, **changes: Any) -> Any:
    """The config of a small model of a family."""
    from transformers import AutoConfig

    kind, own = FAMILIES[name]
    return AutoConfig.for_model(kind, **{**COMMON, **own, **changes})


def family_model(name: str, *, seed: int = 0, **changes: Any) -> Any:
    """A small model as transformers builds it, with every parameter random: norms and all biases too."""
    import torch
    from transformers import AutoModelForCausalLM

    from roll.weights.digest import published_tensors

    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        config = family_config(name, **changes)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
        with torch.no_grad():
            for _, tensor in published_tensors(model):
                tensor.add_(torch.randn(tensor.shape) * 0.1)
    return model.eval()
