"""Numbers of a model of `transformers` for memory plans, from its modules without storage.

Parameters are exact. Values that the backward pass keeps are estimated from the kinds of modules in a layer; those
measured in 16 families differ by less than a quarter. A token is counted with the experts that it chooses.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from roll.config.decoder import NUM_CHOSEN
from roll.engines.hf.decoder import check_output, empty_model, layers_of
from roll.placement.architecture import Architecture, ModelCounts
from roll.weights.huggingface import read_config

_NORM, _HEAD_NORM = 3, 2
"""Values kept per width of a norm: its input, the normalised input, the output; norms of heads share their output."""
_GATED, _CLAMPED = 4, 7
"""Values kept per width of a feed-forward layer: inputs and output of the gate, the product; GPT-OSS clamps them."""
_EXPERT_COPIES = 2
"""Hidden states kept per chosen expert: its input and its output."""


def count_architecture(path: str, trust_remote_code: bool = False) -> Architecture:
    """The dimensions of the model in a directory; raises `ConfigError` if transformers or `hf` cannot build it."""
    text = (Path(path) / "config.json").read_text(encoding="utf-8")
    return _count(path, text, trust_remote_code)


@cache
def _count(path: str, text: str, trust_remote_code: bool) -> Architecture:
    """`text`, the contents of config.json, is only a key of the cache."""
    config = read_config(Path(path), trust_remote_code=trust_remote_code)
    with torch.device("meta"):
        model = empty_model(config, trust_remote_code=trust_remote_code)
    return architecture_of_model(model)


def architecture_of_model(model: Any) -> Architecture:
    """The dimensions of a model, which may be on the meta device."""
    check_output(model)
    config, layers = model.config.get_text_config(), layers_of(model)
    vocab, hidden = model.get_input_embeddings().weight.shape
    heads, kv_heads, key_dim, value_dim = _attention(config)
    parameters = sum(each.numel() for each in model.parameters())
    chosen = _num_chosen(config)
    experts = [(num, size) for layer in layers for _, num, size in _experts(layer)]
    inactive = sum(int(size * (1 - min(chosen / num, 1))) for num, size in experts)
    counts = ModelCounts(
        parameters=parameters,
        active_parameters=parameters - inactive,
        expert_parameters=sum(size for _, size in experts),
        layer_parameters=max(sum(each.numel() for each in layer.parameters()) for layer in layers),
        layer_row=max(_layer_row(layer, config, hidden) for layer in layers),
        score_bytes=4 * heads * _score_copies(config, layers[0]),
        kv_row=len(layers) * kv_heads * (key_dim + value_dim),
        latent_row=len(layers) * (config.kv_lora_rank + config.qk_rope_head_dim) if _latent(config) else 0,
        linear=_linear_widths(model),
    )
    return Architecture(
        vocab=vocab,
        hidden=hidden,
        layers=len(layers),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=key_dim,
        mlp=getattr(config, "intermediate_size", None) or 0,
        tied=bool(getattr(config, "tie_word_embeddings", False)),
        counts=counts,
    )


def _latent(config: Any) -> bool:
    """Whether keys and values are projections of one latent vector per token, as in DeepSeek-V3."""
    return bool(getattr(config, "kv_lora_rank", None) and getattr(config, "qk_rope_head_dim", None))


def _attention(config: Any) -> tuple[int, int, int, int]:
    """Query heads, and heads, key size and value size of the tensors that a layer passes to attention."""
    heads = config.num_attention_heads
    if _latent(config):
        return heads, heads, config.qk_nope_head_dim + config.qk_rope_head_dim, config.v_head_dim
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    return heads, getattr(config, "num_key_value_heads", None) or heads, size, size


def _score_copies(config: Any, layer: nn.Module) -> int:
    """Copies of all products of queries and keys that attention keeps: none, unless it has soft-capping or sinks."""
    softcap = getattr(config, "attn_logit_softcapping", None) is not None
    sinks = any(name.endswith("sinks") for name, _ in layer.named_parameters())
    return 2 if softcap else 1 if sinks else 0


def _num_chosen(config: Any) -> float:
    """Experts per token; infinite if the config does not name them, so that all are counted."""
    return next((number for key in NUM_CHOSEN if isinstance(number := getattr(config, key, None), int)), float("inf"))


def _experts(layer: nn.Module) -> list[tuple[str, int, int]]:
    """For each set of experts of a layer its name, the number of experts, and their parameters."""
    found: list[tuple[str, int, int]] = []
    for name, module in layer.named_modules():
        if name.rpartition(".")[2] == "experts":
            sizes = [each.shape[0] for each in module.parameters(recurse=False)]
            num = len(module) if isinstance(module, nn.ModuleList) else max(sizes, default=1)
            found.append((name, num, sum(each.numel() for each in module.parameters())))
    return found


def _layer_row(layer: nn.Module, config: Any, hidden: int) -> int:
    """Values per token that the backward pass of a layer needs."""
    heads, kv_heads, key_dim, value_dim = _attention(config)
    q, kv = heads * key_dim, kv_heads * (key_dim + value_dim) // 2
    experts = _experts(layer)
    row = 2 * (q + kv)
    for name, module in layer.named_modules():
        last = name.rpartition(".")[2]
        if any(name.startswith(f"{each}.") for each, _, _ in experts):
            continue
        if "norm" in type(module).__name__.lower():
            width = sum(each.numel() for each in module.parameters())
            row += {"q_norm": _HEAD_NORM * q, "k_norm": _HEAD_NORM * kv}.get(last, _NORM * width)
        elif isinstance(module, nn.Linear) and module.out_features == hidden and _is_last_product(name):
            row += _GATED * module.in_features
    return row + sum(_expert_row(layer.get_submodule(name), num, config, hidden) for name, num, _ in experts)


def _is_last_product(name: str) -> bool:
    """Whether a product with as many outputs as the layer is the last of an MLP, and not one of the same size."""
    return "att" not in name and name.rpartition(".")[2] not in ("gate_proj", "up_proj", "w1", "w3")


def _expert_row(experts: nn.Module, num: int, config: Any, hidden: int) -> int:
    """Values per token of the chosen experts of a layer, and the scores of all."""
    down = sum(each.numel() for name, each in experts.named_parameters() if "down" in name or "w2" in name)
    biased = any(name.endswith("bias") for name, _ in experts.named_parameters())
    width = down // (num * hidden)
    chosen = int(min(_num_chosen(config), num))
    return chosen * (_EXPERT_COPIES * hidden + (_CLAMPED if biased else _GATED) * width) + 2 * num


def _linear_widths(model: Any) -> tuple[tuple[str, int], ...]:
    """By the last part of their names, inputs plus outputs of all projections that adapters can be added to."""
    widths: dict[str, int] = {}
    for name, module in model.named_modules():
        if type(module) is nn.Linear:
            last = name.rpartition(".")[2]
            widths[last] = widths.get(last, 0) + module.in_features + module.out_features
    return tuple(widths.items())
