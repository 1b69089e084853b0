"""Models of transformers in vLLM: the same greedy tokens, also after new weights, which experts need packed again."""

import pytest

from benchmarks.models import measure_apart
from tests.engines_optional.conftest import NEEDS_VLLM


@NEEDS_VLLM
@pytest.mark.parametrize("name", ["Gemma 2", "Qwen3-MoE", "GPT-OSS", "Cohere 2"])
def test_vllm_agrees_before_and_after_new_weights(name: str) -> None:
    row = measure_apart(name)
    assert row.vllm == "ok" and row.passes, row
