"""Models and layouts of backend `megatron`, as functions of the contents of config.json. Reads no file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

FAMILIES = ("llama", "qwen2", "qwen3", "qwen3_moe", "mixtral", "deepseek_v3")
RELEASE = "0.16.1"
"""The tested release of megatron-core."""
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
_DENSE = ("llama", "qwen2", "qwen3")
_ROTARY = ("default", "linear", "llama3", "yarn")
_LATENT_TOP = 2
"""Experts whose scores are added for the score of their group, in DeepSeek-V3."""


def num_experts(config: Mapping[str, Any]) -> int:
    """Routed experts per layer; 0 for a dense model."""
    if config.get("model_type") in _DENSE:
        return 0
    return next((number for key in _EXPERTS if isinstance(number := config.get(key), int)), 0)


def family_fault(config: Mapping[str, Any]) -> str:
    """Why Megatron-Core's blocks cannot compute such a model; empty if they can."""
    kind = config.get("model_type")
    if kind not in FAMILIES:
        return f"model_type {kind!r} is not known to backend megatron; choose one of {', '.join(FAMILIES)}, or fsdp2"
    if config.get("hidden_act", "silu") != "silu" or config.get("mlp_bias"):
        return "backend megatron computes SwiGLU layers without bias only; choose fsdp2"
    if config.get("attention_bias") and kind != "qwen2":
        return "backend megatron computes no bias of the attention's output (attention_bias); choose fsdp2"
    if set(config.get("layer_types") or ()) - {"full_attention"}:
        return "backend megatron has no sliding windows; choose fsdp2"
    return _rotary_fault(config) or _router_fault(config)


def _rotary_fault(config: Mapping[str, Any]) -> str:
    rotary = cast(Mapping[str, Any], config.get("rope_parameters") or config.get("rope_scaling") or {})
    kind = rotary.get("rope_type", rotary.get("type", "default"))
    if kind not in _ROTARY:
        return f"backend megatron has no rotary scaling {kind!r}; choose fsdp2"
    if kind == "yarn" and config.get("model_type") != "deepseek_v3":
        return "backend megatron scales rotations with yarn for DeepSeek-V3 only; choose fsdp2"
    if config.get("model_type") == "deepseek_v3" and not config.get("rope_interleave", True):
        return "backend megatron rotates interleaved halves only (rope_interleave false); choose fsdp2"
    return ""


def _router_fault(config: Mapping[str, Any]) -> str:
    """DeepSeek-V3's router has options that Megatron-Core's has not."""
    if config.get("model_type") != "deepseek_v3":
        return ""
    if config.get("norm_topk_prob", True) is False:
        return "backend megatron always normalises the weights of chosen experts (norm_topk_prob false); choose fsdp2"
    groups, chosen, top = (config.get(key) or 1 for key in ("n_group", "topk_group", "num_experts_per_tok"))
    if groups > 1 and top != chosen * _LATENT_TOP:
        return (
            f"backend megatron adds the scores of {top} / {chosen} experts for a group's score, and the model of "
            f"{_LATENT_TOP}; choose fsdp2"
        )
    return ""


def package_fault(version: str | None) -> str:
    """Why an installed release of megatron-core cannot be used; None: it is not installed."""
    if version is None:
        return f"megatron needs the package megatron-core; install megatron-core=={RELEASE}, or choose fsdp2"
    if version.split(".")[:2] != RELEASE.split(".")[:2]:
        return f"megatron-core {version} was not tested; install megatron-core=={RELEASE}, or choose fsdp2"
    return ""


def layout_fault(config: Mapping[str, Any], *, tp: int, pp: int, cp: int, ep: int, workers: int | None) -> str:
    """Which number of the model or of the workers the layout does not divide; empty if it divides all.

    `workers` is None if their number is not known yet.
    """
    experts, sizes = num_experts(config), {"tp": tp, "pp": pp, "cp": cp, "ep": ep}
    faults = (*_model_faults(config, experts, sizes), *_worker_faults(workers, sizes))
    return next(iter(faults), "")


def _model_faults(config: Mapping[str, Any], experts: int, sizes: Mapping[str, int]) -> Iterator[str]:
    tp, pp, cp, ep = (sizes[name] for name in ("tp", "pp", "cp", "ep"))
    layers, heads = int(config.get("num_hidden_layers", 0)), int(config.get("num_attention_heads", 1))
    kv_heads = heads if config.get("model_type") == "deepseek_v3" else int(config.get("num_key_value_heads") or heads)
    if layers % pp:
        yield f"parallel.pp ({pp}): {layers} layers do not divide into {pp} stages; choose a divisor"
    for what, number in (("attention heads", heads), ("key and value heads", kv_heads)):
        if number % (tp * cp):
            yield f"parallel: {number} {what} do not divide by tp {tp} times cp {cp}; lower one of them"
    for key in ("intermediate_size", "moe_intermediate_size"):
        if (width := config.get(key)) and width % tp:
            yield f"parallel.tp ({tp}): {key} ({width}) does not divide; lower it"
    if ep > 1 and not experts:
        yield f"parallel.ep ({ep}): the model has no experts; leave it out"
    if experts % ep:
        yield f"parallel.ep ({ep}): {experts} experts do not divide; choose a divisor"


def _worker_faults(workers: int | None, sizes: Mapping[str, int]) -> Iterator[str]:
    tp, pp, cp, ep = (sizes[name] for name in ("tp", "pp", "cp", "ep"))
    if workers is None:
        return
    if workers % (tp * pp * cp):
        yield f"workers ({workers}): do not divide into groups of tp {tp} times pp {pp} times cp {cp}; name a multiple"
    if (workers // pp) % ep:
        yield f"parallel.ep ({ep}): a stage has {workers // pp} ranks, which do not divide by it; choose a divisor"
