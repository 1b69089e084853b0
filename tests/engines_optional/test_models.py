"""Models of transformers in vLLM: the same greedy tokens, also after new weights, which experts need packed again."""

from typing import Any

import pytest

from benchmarks.models import measure_apart
from tests.engines_optional.conftest import NEEDS_VLLM

MOONLIGHT: dict[str, Any] = {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0}, "q_lora_rank": None}
"""Latent attention with plain rotation, which vLLM has a faulty kernel for."""


@NEEDS_VLLM
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("Gemma 2", {}),
        ("Qwen3-MoE", {}),
        ("GPT-OSS", {}),
        ("Cohere 2", {}),
        ("DeepSeek-V3", {}),
        ("DeepSeek-V3", MOONLIGHT),
    ],
)
def test_vllm_agrees_before_and_after_new_weights(name: str, changes: dict[str, Any]) -> None:
    row = measure_apart(name, **changes)
    assert row.vllm == "ok" and row.passes, row
