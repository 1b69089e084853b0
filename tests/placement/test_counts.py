"""Plans of models that transformers computes: mixtures of experts, latent attention, sliding windows."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.families import FAMILIES, family_config, family_model
from roll.config.lora import Lora
from roll.engines.hf.counts import architecture_of_model, count_architecture
from roll.engines.hf.decoder import HuggingFaceDecoder
from roll.engines.native.attention import Ragged
from roll.errors import ConfigError
from roll.explain.placement import count_modules, placement_report
from roll.placement.architecture import architecture_of_mixture
from roll.placement.facts import facts_of
from roll.placement.machine import parse_cluster
from roll.placement.planner import plan_devices
from roll.placement.records import Placement
from roll.placement.search import levels
from tests.placement.runs import run_of

pytestmark = pytest.mark.slow

MIXTURES = ["Qwen3-MoE", "DeepSeek-V3", "GPT-OSS", "Mixtral"]
LARGE: dict[str, Any] = {  # Qwen3-30B-A3B
    **{"model_type": "qwen3_moe", "vocab_size": 151936, "hidden_size": 2048, "num_hidden_layers": 48},
    **{"num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144},
    **{"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "max_position_embeddings": 40960},
    "tie_word_embeddings": False,
}


def directory(tmp_path: Path, config: Any) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config if isinstance(config, dict) else config.to_dict()))
    return folder


def planned(tmp_path: Path, cluster: str, *changes: str) -> Placement:
    run = run_of(tmp_path, f"model={{path: {tmp_path}/model}}", *changes)
    return plan_devices(facts_of(run, count=count_modules), parse_cluster(cluster))


def share(plan: Placement, role: str, part: str, phase: str) -> int:
    return sum(each.bytes for each in plan.shares if (each.role, each.part, each.phase) == (role, part, phase))


@pytest.mark.parametrize("name", MIXTURES)
def test_weights_gradients_and_optimizer_are_those_of_the_module(name: str, tmp_path: Path) -> None:
    model = family_model(name)
    directory(tmp_path, model.config)
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    changes = ["rollout.max_seq_len=128", "rollout.max_new_tokens=64", "actor_train.devices=[0]"]
    plan = planned(tmp_path, "2xH200", *changes, "actor_infer.devices=[1]")
    assert share(plan, "actor_train", "weights", "update") == size
    assert share(plan, "actor_train", "gradients", "update") == size
    assert share(plan, "actor_train", "optimizer", "update") == 2 * size
    assert share(plan, "actor_infer", "weights", "rollout") == size


@pytest.mark.sweep(keep=4)
@pytest.mark.parametrize("name", FAMILIES)
def test_the_kv_cache_is_that_of_the_native_generator(name: str) -> None:
    decoder = HuggingFaceDecoder(family_model(name))
    shape = decoder.cache_shape
    counted = architecture_of_model(decoder.model)
    assert counted.kv_row == shape.layers * shape.kv_heads * (shape.key_dim + shape.value_dim)
    assert counted.cache_row("native") == counted.kv_row


@pytest.mark.sweep(keep=4)
@pytest.mark.parametrize("name", FAMILIES)
def test_activations_are_those_that_the_backward_pass_needs(name: str) -> None:
    model = family_model(name, hidden_size=256, intermediate_size=512)
    counted, decoder = architecture_of_model(model), HuggingFaceDecoder(model)
    length, num_tokens = 64, 256
    constants = {parameter.untyped_storage().data_ptr() for parameter in decoder.parameters()}
    kept: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in constants:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    layout = Ragged([length] * (num_tokens // length), device=torch.device("cpu"))
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        decoder.hidden(torch.arange(num_tokens) % 96, layout.positions, layout.attend)
    row = 4 * counted.layer_row + counted.score_bytes * length
    assert sum(kept.values()) == pytest.approx(num_tokens * counted.layers * row, rel=0.25)


def test_a_token_uses_the_experts_that_it_chooses() -> None:
    counted = architecture_of_model(family_model("Qwen3-MoE"))
    experts = 3 * 8 * 3 * 128 * 32  # 3 layers of 8 experts with 3 products of 128 x 32, of which 2 are chosen
    assert counted.parameters - counted.active_parameters == experts * 6 // 8


def test_vllm_caches_one_latent_vector_per_token_and_layer() -> None:
    counted = architecture_of_model(family_model("DeepSeek-V3"))
    assert counted.cache_row("vllm") == 3 * (512 + 64)
    assert counted.cache_row("native") == 3 * 4 * ((32 + 64) + 32)


@pytest.mark.parametrize("name", ["Qwen3-MoE", "DeepSeek-V3"])
def test_numbers_from_config_json_are_those_of_the_modules(name: str) -> None:
    """Models known by name are counted without building them."""
    model = family_model(name)
    expected, here = architecture_of_model(model), architecture_of_mixture(model.config.to_dict())
    assert expected.counts is not None and here.counts is not None
    assert dict(here.counts.linear) == dict(expected.counts.linear)
    assert replace(here, counts=replace(here.counts, linear=expected.counts.linear)) == expected


def test_adapters_are_counted_by_the_names_of_projections() -> None:
    model = family_model("DeepSeek-V3")
    counted, lora = architecture_of_model(model), Lora(rank=2, target_modules=("o_proj", "q_b_proj"))
    decoder = HuggingFaceDecoder(model)
    decoder.attach(lora)
    assert counted.adapter_parameters(lora) == sum(each.numel() for _, each in decoder.adapter_tensors())


def test_a_large_mixture_is_planned_in_seconds_without_memory_for_it(tmp_path: Path) -> None:
    folder = directory(tmp_path, LARGE)
    began = time.process_time()
    counted = count_architecture(str(folder))
    assert time.process_time() - began < 20
    assert counted.parameters == 30_532_122_624 and counted.active_parameters == pytest.approx(3.35e9, rel=0.01)
    # keys and values of 4 heads of 128 in 48 layers
    assert counted.kv_row == 48 * 2 * 4 * 128
    fsdp = "actor_train={backend: fsdp2, dtype: bfloat16, activation_checkpointing: true, devices: 0-7, workers: 8}"
    vllm = "actor_infer={backend: vllm, dtype: bfloat16, devices: 8-15, parallel: {tp: 2}}"
    plan = planned(tmp_path, "2x8xH200", fsdp, vllm)
    assert share(plan, "actor_train", "weights", "update") == 4 * counted.parameters // 8
    assert share(plan, "actor_infer", "weights", "rollout") == counted.parameters
    text = placement_report(run_of(tmp_path, f"model={{path: {folder}}}", fsdp, vllm), "2x8xH200")
    assert "experts: a token uses 3,35" in text and " ? " not in text


@pytest.mark.parametrize(
    ("layout", "experts", "others"),
    [("tp: 4, ep: 4", 4, 4), ("tp: 2, ep: 8, pp: 1", 8, 2), ("ep: 4, pp: 2", 8, 2), ("tp: 4, pp: 2", 8, 8)],
)
def test_megatron_divides_experts_by_ep_and_other_weights_by_tp(
    layout: str, experts: int, others: int, tmp_path: Path
) -> None:
    directory(tmp_path, LARGE)
    train = f"actor_train={{backend: megatron, parallel: {{{layout}}}, devices: 0-7, activation_checkpointing: true}}"
    plan = planned(tmp_path, "2x8xH200", train, "actor_infer={backend: vllm, dtype: bfloat16, devices: 8-15}")
    routed = 48 * 128 * 3 * 2048 * 768
    expected = 4 * (routed / experts + (30_532_122_624 - routed) / others)
    assert share(plan, "actor_train", "weights", "update") == pytest.approx(expected, rel=5e-3)  # norms, routers
    assert share(plan, "actor_train", "gradients", "update") == share(plan, "actor_train", "weights", "update")
    assert share(plan, "actor_train", "optimizer", "update") == pytest.approx(8 * 30_532_122_624 / 8, rel=5e-3)


def test_sequences_of_a_model_of_transformers_are_not_divided(tmp_path: Path) -> None:
    directory(tmp_path, LARGE)
    settings = ["actor_train={backend: fsdp2, dtype: bfloat16}", "actor_infer={backend: vllm, dtype: bfloat16}"]
    run = run_of(tmp_path, f"model={{path: {tmp_path}/model}}", *settings)
    candidates = levels(facts_of(run, count=count_modules), parse_cluster("2x8xH200"))
    assert {each.facts.role("actor_train").cp for level in candidates for each in level} == {1}


def test_a_model_that_cannot_be_built_is_an_error_of_the_plan(tmp_path: Path) -> None:
    folder = directory(tmp_path, {**family_config("Gemma 2").to_dict(), "hidden_activation": "unheard of"})
    with pytest.raises(ConfigError, match=r"model: transformers cannot build it \(KeyError: 'unheard of'\)"):
        count_architecture(str(folder))


def test_counting_needs_no_storage() -> None:
    model = family_model("GPT-OSS")
    assert architecture_of_model(model) == architecture_of_model(model.to("meta"))
