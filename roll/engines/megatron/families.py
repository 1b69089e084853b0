"""Megatron-Core's configuration and layer specification for a Hugging Face model."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its customary name
from torch import Tensor
from transformers import PretrainedConfig

from roll.config.megatron import num_experts
from roll.engines.megatron.blocks import PackedCoreAttention, SequenceNorm
from roll.engines.megatron.package import MLATransformerConfig, TransformerConfig, gpt_layer_specs
from roll.engines.megatron.ranks import MegatronLayout
from roll.engines.native.mixed import Precision


def transformer_config(config: PretrainedConfig, layout: MegatronLayout, precision: Precision) -> Any:
    """The configuration of the blocks."""
    latent, experts = config.model_type == "deepseek_v3", num_experts(config.to_dict())
    values: dict[str, Any] = {**_common(config, layout, precision)}
    if latent:
        values |= _latent_attention(config)
    else:
        values |= {
            "num_query_groups": config.num_key_value_heads,
            "kv_channels": getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
            "qk_layernorm": config.model_type.startswith("qwen3"),
            "add_qkv_bias": config.model_type == "qwen2",
        }
    if experts:
        values |= _mixture(config, experts, latent)
    return MLATransformerConfig(**values) if latent else TransformerConfig(**values)


def block_spec(config: Any) -> Any:
    """The specification of this stage's layers, with roll's own norms and attention."""
    spec: Any = gpt_layer_specs.get_gpt_decoder_block_spec(
        config, use_transformer_engine=False, normalization="RMSNorm"
    )
    spec.layer_norm = SequenceNorm
    for layer in spec.layer_specs:
        parts = layer.submodules
        parts.input_layernorm = parts.pre_mlp_layernorm = SequenceNorm
        attention = parts.self_attention.submodules
        attention.core_attention = PackedCoreAttention
        for name in ("q_layernorm", "k_layernorm", "kv_layernorm"):
            if hasattr(attention, name) and (config.qk_layernorm or config.multi_latent_attention):
                setattr(attention, name, SequenceNorm)
    return spec


def rotary_frequencies(config: PretrainedConfig) -> Tensor:
    """[rotated size / 2] of the model."""
    parameters: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    kind = parameters.get("rope_type", "default")
    if kind == "default":
        size = getattr(config, "qk_rope_head_dim", None) or getattr(config, "head_dim", None)
        size = size or config.hidden_size // config.num_attention_heads
        even = torch.arange(0, size, 2, dtype=torch.float32, device="cpu")
        return 1.0 / parameters.get("rope_theta", 10_000.0) ** (even / size)
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS  # takes a second

    frequencies, scaling = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    assert abs(scaling - 1.0) < 1e-6, "rotations are scaled in attention only"
    return frequencies


def _common(config: PretrainedConfig, layout: MegatronLayout, precision: Precision) -> dict[str, Any]:
    dtype = precision.dtype or torch.float32
    recompute = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    return {
        "num_layers": config.num_hidden_layers,
        "hidden_size": config.hidden_size,
        "num_attention_heads": config.num_attention_heads,
        "ffn_hidden_size": config.intermediate_size,
        "tensor_model_parallel_size": layout.tp,
        "pipeline_model_parallel_size": layout.pp,
        "context_parallel_size": layout.cp,
        "expert_model_parallel_size": layout.ep,
        "expert_tensor_parallel_size": layout.expert_tp,
        "sequence_parallel": layout.tp > 1,
        "params_dtype": dtype,
        "pipeline_dtype": dtype,
        "bf16": dtype == torch.bfloat16,
        "perform_initialization": False,  # weights are read
        "normalization": "RMSNorm",
        "layernorm_epsilon": config.rms_norm_eps,
        "gated_linear_unit": True,
        "activation_func": F.silu,
        "add_bias_linear": False,
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
        "bias_activation_fusion": False,
        "bias_dropout_fusion": False,
        "masked_softmax_fusion": False,
        "gradient_accumulation_fusion": False,
        "persist_layer_norm": False,
        "apply_rope_fusion": False,
        "variable_seq_lengths": True,
        "calculate_per_token_loss": True,  # gradients are sums: token weights include the denominator
        "moe_token_dispatcher_type": "alltoall",
        **(recompute if precision.checkpointing else {}),
    }


def _latent_attention(config: PretrainedConfig) -> dict[str, Any]:
    return {
        "multi_latent_attention": True,
        "qk_layernorm": True,
        "q_lora_rank": config.q_lora_rank,
        "kv_lora_rank": config.kv_lora_rank,
        "qk_head_dim": config.qk_nope_head_dim,
        "qk_pos_emb_head_dim": config.qk_rope_head_dim,
        "v_head_dim": config.v_head_dim,
        "rope_type": "rope",
    }


def attention_scale(config: PretrainedConfig) -> float | None:
    """The factor of the products of queries and keys, where yarn changes it."""
    parameters: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    if config.model_type != "deepseek_v3":
        return None
    scale = (config.qk_nope_head_dim + config.qk_rope_head_dim) ** -0.5
    if parameters.get("rope_type", "default") == "yarn" and (wide := parameters.get("mscale_all_dim")):
        factor = parameters["factor"]
        scale *= (0.1 * wide * torch.tensor(factor).log().item() + 1.0 if factor > 1 else 1.0) ** 2
    return scale


def _mixture(config: PretrainedConfig, experts: int, latent: bool) -> dict[str, Any]:
    values: dict[str, Any] = {
        "num_moe_experts": experts,
        "moe_router_topk": config.num_experts_per_tok,
        "moe_ffn_hidden_size": getattr(config, "moe_intermediate_size", None) or config.intermediate_size,
        "moe_grouped_gemm": False,
        "moe_router_load_balancing_type": "none",
        "moe_router_dtype": "fp32",
        "moe_router_pre_softmax": latent or not getattr(config, "norm_topk_prob", True),
        "moe_layer_freq": _sparse_layers(config),
    }
    if latent:
        groups = config.n_group or 1
        values |= {
            "moe_router_score_function": "sigmoid",
            "moe_router_enable_expert_bias": True,
            "moe_router_bias_update_rate": 0.0,
            "moe_router_topk_scaling_factor": config.routed_scaling_factor,
            "moe_shared_expert_intermediate_size": config.moe_intermediate_size * config.n_shared_experts or None,
            "moe_router_num_groups": groups if groups > 1 else None,
            "moe_router_group_topk": config.topk_group if groups > 1 else None,
        }
    return values


def _sparse_layers(config: PretrainedConfig) -> list[int]:
    """For each layer 1 if it has experts, else 0."""
    layers = range(config.num_hidden_layers)
    if config.model_type == "deepseek_v3":
        return [int(layer >= config.first_k_dense_replace) for layer in layers]
    dense, step = getattr(config, "mlp_only_layers", None) or [], getattr(config, "decoder_sparse_step", None) or 1
    return [int(layer not in dense and (layer + 1) % step == 0) for layer in layers]
