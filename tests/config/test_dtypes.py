"""Trainer and generator must use the same type of weights."""

from pathlib import Path

import pytest
import torch

from roll.config.backends import VllmInfer
from roll.config.load import load
from roll.config.schema import NativeInfer, Run
from roll.errors import ConfigError
from roll.wiring.actor import native_settings, vllm_settings

RUN = """\
model: {shape: {}}
algorithm: grpo
tasks: [{name: sums, data: {kind: arithmetic}, reward: exact}]
rollout: {max_seq_len: 128, max_new_tokens: 8}
"""


def loaded(path: Path, rest: str) -> Run:
    (path / "run.yaml").write_text(RUN + rest)
    return load(path / "run.yaml").run


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_native_generator_uses_the_dtype_of_the_trainer(dtype: str, tmp_path: Path) -> None:
    run = loaded(tmp_path, f"actor_train: {{dtype: {dtype}}}\n")
    assert isinstance(run.actor_infer, NativeInfer)
    assert native_settings(run, run.actor_infer).dtype is getattr(torch, dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_vllm_uses_the_dtype_of_the_trainer(dtype: str, tmp_path: Path) -> None:
    run = loaded(tmp_path, f"actor_train: {{dtype: {dtype}}}\nactor_infer: {{backend: vllm}}\n")
    assert isinstance(run.actor_infer, VllmInfer)
    assert vllm_settings(run, run.actor_infer).dtype == dtype


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        (
            "{float32_compute: true}",
            "float32_compute: dtype is float32 already; leave it out, or set dtype to bfloat16",
        ),
        ("{float32_compute: true, dtype: bfloat16, lora: {}}", "float32_compute: the model under adapters has 16 bits"),
        ("{fp8_products: gradients}", r"fp8_products: needs dtype bfloat16 \(got float32\)"),
        ("{fp8_products: gradients, dtype: bfloat16, lora: {}}", "fp8_products: products with adapters have 16 bits"),
        ("{fp8_products: gradients, dtype: bfloat16, devices: cpu}", r"fp8_products: needs a GPU \(got devices cpu\)"),
        (
            "{fp8_products: gradients, dtype: bfloat16, float32_compute: true}",
            "fp8_products: float32_compute computes in 32",
        ),
        (
            "{fp8_products: gradients, dtype: bfloat16}\ndeterministic: true",
            "deterministic: tokens of backend vllm depend",
        ),
    ],
)
def test_a_precision_without_effect_is_an_error(given: str, fault: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=fault):
        loaded(tmp_path, f"actor_train: {given}\nactor_infer: {{backend: vllm}}\n")
