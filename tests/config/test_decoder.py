"""Models that the engines support, by their config.json alone; the result does not depend on filled-in defaults."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from roll.config.decoder import decoder_fault, longest_sequence
from roll.config.load import load
from roll.errors import ConfigError
from roll.preflight import preflight
from tests.cli.conftest import call
from tests.model_directories import fill

TEXT = """\
model: {path: model}
algorithm: grpo
tasks: [{name: sums, data: arithmetic, reward: exact}]
rollout: {max_seq_len: 64, max_new_tokens: 8}
"""
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0}
LONG = {"type": "longrope", "short_factor": [1.0] * 48, "long_factor": [4.0] * 48}
HALF = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5}
WINDOW = {"use_sliding_window": True, "sliding_window": 32, "max_window_layers": 1, "num_hidden_layers": 2}


def write(tmp_path: Path, config: Any, folder: str = "model") -> Path:
    """A model directory without weights, and a run that starts from it."""
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    (tmp_path / "run.yaml").write_text(TEXT)
    return tmp_path


@pytest.mark.parametrize("command", ["check", "explain"])
@pytest.mark.parametrize(
    ("config", "fault"),
    [
        ({"model_type": "a_new_one"}, "transformers has no causal language model of model_type 'a_new_one'"),
        ({"model_type": "clip"}, "transformers has no causal language model of model_type 'clip'"),
        ({"model_type": "bloom"}, "model_type 'bloom' is not supported: "),
        ({"model_type": "gemma2", "quantization_config": {"bits": 4}}, "its weights are quantised"),
        ({"model_type": "qwen2", "quantization_config": {"bits": 4}}, "its weights are quantised"),
        ({"model_type": "bart", "is_encoder_decoder": True}, "it has an encoder"),
        ({"model_type": "x", "auto_map": {"AutoConfig": "x.X"}}, "it needs Python code from its directory"),
        ({"model_type": "gemma2", "max_position_embeddings": 32}, "it has 32 positions, and rollout.max_seq_len is 64"),
        ({"model_type": "glm_moe_dsa"}, "layers of indexed_attention are not supported"),
        (
            {"model_type": "phi3", "rope_scaling": LONG, "original_max_position_embeddings": 32, "pad_token_id": 0},
            "its rotary frequencies change after 32 tokens, for all sequences of a batch at once, and rollout.max_seq",
        ),
    ],
)
def test_a_model_that_no_engine_supports_is_refused_in_one_line(
    tmp_path: Path, config: Any, fault: str, command: str
) -> None:
    write(tmp_path, config)
    fill(tmp_path / "model")
    assert f"run.yaml:1: model.path: model/config.json: {fault}" in call(tmp_path, command, "run.yaml").fault(2)


def test_a_forced_engine_is_the_only_one_considered(tmp_path: Path) -> None:
    write(tmp_path, {"model_type": "gemma2"})
    fault = call(tmp_path, "explain", "run.yaml", "model.engine=native").fault(2)
    assert "model_type 'gemma2' is not supported; choose a model with llama, mistral, qwen2, qwen3" in fault


@pytest.mark.parametrize(
    ("config", "fault"),
    [
        ({}, "model/config.json: it has no model_type; copy it again"),
        ("[]", "model/config.json: not a JSON object"),
        ("{", "model/config.json: not readable"),
        ({"model_type": "llama", "hidden_size": "64"}, "hidden_size is not a whole number (got '64')"),
        ({"model_type": "llama", "max_position_embeddings": None}, "max_position_embeddings is not a whole number"),
        ({"model_type": "llama", "rope_scaling": "linear"}, "rope_scaling is not an object (got 'linear')"),
        ({"model_type": "llama", "max_position_embeddings": 32}, "it has 32 positions, and rollout.max_seq_len is 64"),
    ],
)
def test_a_config_that_cannot_be_used_is_reported_in_one_line(tmp_path: Path, config: Any, fault: str) -> None:
    line = call(write(tmp_path, config), "explain", "run.yaml").fault(2)
    assert fault in line


@pytest.mark.parametrize("config", [{"model_type": "mistral", "sliding_window": 63}, {"model_type": "qwen2", **WINDOW}])
def test_the_native_decoder_refuses_a_window_shorter_than_sequences(tmp_path: Path, config: Any) -> None:
    line = call(write(tmp_path, config), "explain", "run.yaml", "model.engine=native").fault(2)
    assert f"its sliding window is {config['sliding_window']} tokens, and rollout.max_seq_len is 64; lower" in line


def test_a_model_directory_without_a_config_is_reported_in_one_line(tmp_path: Path) -> None:
    write(tmp_path, {})
    (tmp_path / "model" / "config.json").unlink()
    assert "model has no config.json" in call(tmp_path, "explain", "run.yaml").fault(2)


def test_a_model_on_another_machine_can_be_explained(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(TEXT)
    assert call(tmp_path, "explain", "run.yaml", "--cluster", "8xH100").code == 0


@pytest.mark.parametrize(
    "role",
    [
        "critic={path: other}",
        "reference={path: other}",
        "reward_model={path: other}",
        "teacher={path: other}",
        "policies=[{name: a, agents: [x], path: other}, {name: b, agents: [y]}]",
    ],
)
def test_the_model_of_every_role_is_checked(tmp_path: Path, role: str) -> None:
    write(tmp_path, {"model_type": "llama"})
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text('{"model_type": "bloom"}')
    recipe = ["algorithm=opd"] if role.startswith("teacher") else []
    env = ["tasks=[{name: x, env: tic_tac_toe}]"] if role.startswith("policies") else []
    loaded = load(tmp_path / "run.yaml", [role.replace("other", f"{tmp_path}/other"), *recipe, *env])
    with pytest.raises(ConfigError, match=rf"\.path: {tmp_path}/other/config.json: model_type 'bloom'"):
        preflight(loaded, files=False)


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {}),
        ("llama", {"hidden_act": "gelu"}),
        ("llama", {"mlp_bias": True}),
        ("llama", {"partial_rotary_factor": 0.5}),
        ("llama", {"rope_parameters": HALF}),
        ("qwen2", {"rope_parameters": DYNAMIC}),
        ("qwen2", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}),
        ("llama", {"rope_scaling": {"type": "linear", "factor": 2.0}}),
        ("mistral", {}),
        ("mistral", {"sliding_window": None}),
        ("mistral", {"sliding_window": 64}),
        ("qwen2", WINDOW),
        ("qwen2", {**WINDOW, "max_window_layers": 2}),
        ("qwen3", {"layer_types": ["full_attention", "sliding_attention"], **WINDOW}),
        ("qwen3", {}),
    ],
)
def test_defaults_of_transformers_do_not_change_the_result(family: str, changes: dict[str, Any]) -> None:
    config = {"model_type": family, "max_position_embeddings": 8192, **changes}
    filled_in = AutoConfig.for_model(**config).to_dict()
    assert decoder_fault(config) == decoder_fault(filled_in)
    assert longest_sequence(config) == longest_sequence(filled_in)


def test_projections_of_other_families_are_refused_by_the_native_decoder(tmp_path: Path) -> None:
    write(tmp_path, {"model_type": "qwen3"})
    fill(tmp_path / "model")
    fault = call(tmp_path, "check", "run.yaml", "actor_train.lora={target_modules: [qkv_proj]}").fault(2)
    assert "actor_train.lora.target_modules: the native decoder has no qkv_proj; choose from q_proj," in fault
