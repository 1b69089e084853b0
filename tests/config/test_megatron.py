"""Models and layouts that backend megatron refuses before a run starts."""

import json
from pathlib import Path
from typing import Any

import pytest

from roll.config.load import load
from roll.config.megatron import FAMILIES, family_fault, layout_fault, package_fault
from roll.errors import ConfigError
from roll.model_files import megatron_faults

QWEN3: dict[str, Any] = {
    "model_type": "qwen3",
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
}
MIXTURE: dict[str, Any] = {**QWEN3, "model_type": "qwen3_moe", "num_experts": 6, "moe_intermediate_size": 32}
LATENT: dict[str, Any] = {**QWEN3, "model_type": "deepseek_v3", "n_routed_experts": 8, "num_experts_per_tok": 8}
ONE = {"tp": 1, "pp": 1, "cp": 1, "ep": 1}


@pytest.mark.parametrize(
    ("config", "sizes", "workers", "expected"),
    [
        (QWEN3, {"pp": 3}, 3, "4 layers do not divide into 3 stages"),
        (QWEN3, {"tp": 4}, 4, "2 key and value heads do not divide by tp 4 times cp 1"),
        (QWEN3, {"tp": 2, "cp": 2}, 4, "2 key and value heads do not divide by tp 2 times cp 2"),
        (QWEN3, {"ep": 2}, 2, "the model has no experts"),
        (MIXTURE, {"ep": 4}, 4, "6 experts do not divide"),
        (MIXTURE, {"tp": 2, "pp": 2}, 6, "workers (6)"),
        (MIXTURE, {"ep": 3}, 4, "a stage has 4 ranks"),
        ({**QWEN3, "intermediate_size": 63}, {"tp": 2}, 2, "intermediate_size (63)"),
    ],
)
def test_a_layout_that_does_not_divide_is_named(
    config: dict[str, Any], sizes: dict[str, int], workers: int, expected: str
) -> None:
    assert expected in layout_fault(config, workers=workers, **{**ONE, **sizes})


def test_layouts_that_divide_have_no_fault() -> None:
    assert not layout_fault(MIXTURE, tp=2, pp=2, cp=1, ep=2, workers=8)
    assert not layout_fault(MIXTURE, tp=2, pp=2, cp=1, ep=2, workers=None)
    assert not layout_fault({**LATENT, "num_key_value_heads": 1}, tp=4, pp=1, cp=1, ep=1, workers=4)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"model_type": "gemma2"}, "'gemma2' is not known"),
        ({"attention_bias": True}, "attention_bias"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "no sliding windows"),
        ({"rope_parameters": {"rope_type": "dynamic"}}, "no rotary scaling 'dynamic'"),
        ({"rope_scaling": {"type": "yarn"}}, "for DeepSeek-V3 only"),
        ({"hidden_act": "gelu"}, "SwiGLU"),
        ({**LATENT, "n_group": 4, "topk_group": 2}, "8 / 2 experts"),
        ({**LATENT, "norm_topk_prob": False}, "norm_topk_prob"),
        ({**LATENT, "rope_interleave": False}, "rope_interleave"),
    ],
)
def test_a_model_that_the_blocks_do_not_know_is_named(changes: dict[str, Any], expected: str) -> None:
    assert expected in family_fault({**QWEN3, **changes})


def test_all_families_are_accepted() -> None:
    assert not any(family_fault({**QWEN3, "model_type": family}) for family in FAMILIES)
    assert not family_fault({**LATENT, "n_group": 8, "topk_group": 4})


def test_a_missing_or_untested_package_is_named() -> None:
    assert "install megatron-core==" in package_fault(None)
    assert "0.19.2 was not tested" in package_fault("0.19.2")
    assert not package_fault("0.16.1")


def write_run(folder: Path, *, path: str = "") -> Path:
    model = f"{{path: {path}}}" if path else "{shape: {alphabet: '0123456789+='}}"
    file = folder / "run.yaml"
    file.write_text(
        f"executor: ray\nalgorithm: grpo\nmodel: {model}\n"
        "tasks: [{name: sums, data: {kind: arithmetic}, reward: exact}]\n"
        "rollout: {max_seq_len: 64, max_new_tokens: 8}\nactor_train: {backend: megatron, workers: 2}\n"
    )
    return file


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (("actor_train.parallel.pp=3",), "do not divide into groups"),
        (("actor_train.parallel.ep=3",), "choose a divisor"),
        (("executor=inline", "actor_train.workers=1"), "every rank is a process"),
        (
            ("actor_train.parallel.pp=2", "critic={sharded: true, workers: 3}"),
            r"critic.workers \(3\) do not divide into groups",
        ),
        (("actor_train.parallel.ep=2", "reference={sharded: true, workers: 3}"), "reference.workers: a stage has 3"),
        (("actor_train.optimizer.layer_grad_norms=true",), "layer_grad_norms"),
        (("actor_train.lora={rank: 4}",), "actor_train.lora"),
    ],
)
def test_a_file_that_cannot_work_is_refused(overrides: tuple[str, ...], expected: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=expected):
        load(write_run(tmp_path), list(overrides))


def test_the_model_of_a_run_is_compared_with_its_layout(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MIXTURE))
    file = write_run(tmp_path, path=str(tmp_path))
    layout = ["actor_train.workers=4", "actor_train.parallel.ep=4"]
    key, fault = next(megatron_faults(load(file, layout).run))
    assert key == "actor_train.parallel" and "6 experts do not divide" in fault
    (tmp_path / "config.json").write_text(json.dumps({**QWEN3, "model_type": "phi3"}))
    key, fault = next(megatron_faults(load(file).run))
    assert key == "actor_train.backend" and "'phi3' is not known" in fault


def test_the_model_of_another_role_is_compared_with_the_layout_only_if_it_is_sharded(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**QWEN3, "model_type": "phi3"}))
    reward_model = f"path: {tmp_path}, workers: 2"
    file = write_run(tmp_path)
    sharded = load(file, [f"reward_model={{{reward_model}, sharded: true}}"]).run
    assert ("reward_model.sharded", "'phi3' is not known") in [
        (key, fault[11:30]) for key, fault in megatron_faults(sharded)
    ]
    whole = load(file, [f"reward_model={{{reward_model}}}"]).run
    assert "reward_model.sharded" not in [key for key, _ in megatron_faults(whole)]
