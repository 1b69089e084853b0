"""Families that vLLM treats otherwise than transformers: what can be tested without it."""

from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.families import FAMILIES, family_config, family_model
from roll.engines.hf.decoder import HuggingFaceDecoder
from roll.engines.vllm.families import config_overrides, cpu_arguments, is_lost_on_reload, repeats_projection


class LatentAttention(nn.Module):
    """As in vLLM: a projection, and its two parts for decoding."""

    def __init__(self) -> None:
        super().__init__()
        self.kv_b_proj = nn.Linear(8, 2 * (3 + 5), bias=False)
        keys, values = self.kv_b_proj.weight.detach().view(2, 3 + 5, 8).split([3, 5], dim=1)
        self.W_UK_T = nn.Parameter(keys.clone())
        self.W_UV = nn.Parameter(values.transpose(1, 2).clone())


def test_copies_of_a_projection_count_only_if_they_are_stale() -> None:
    module = LatentAttention()
    assert repeats_projection(module) and not repeats_projection(module.kv_b_proj)
    with torch.no_grad():
        module.kv_b_proj.weight.mul_(2)
    assert not repeats_projection(module)


def test_only_tensors_of_gpt_oss_are_loaded_again() -> None:
    lost = {name: [key for key, _ in tensors(name) if is_lost_on_reload(key)] for name in ("GPT-OSS", "Qwen3-MoE")}
    kinds = {key.partition("layers.0.")[2] for key in lost["GPT-OSS"] if "layers.0." in key}
    experts = ("gate_up_proj", "gate_up_proj_bias", "down_proj", "down_proj_bias")
    assert kinds == {"self_attn.sinks", *(f"mlp.experts.{each}" for each in experts)}
    assert lost["Qwen3-MoE"] == []


def tensors(name: str) -> Any:
    return HuggingFaceDecoder(family_model(name)).named_tensors()


@pytest.mark.parametrize("name", FAMILIES)
def test_only_latent_attention_has_arguments_for_the_cpu(name: str) -> None:
    assert bool(cpu_arguments(family_config(name))) == (name == "DeepSeek-V3")


@pytest.mark.parametrize("name", [each for each in FAMILIES if each != "Cohere 2"])
def test_other_families_keep_their_config(name: str) -> None:
    assert config_overrides(family_config(name)) == {}
