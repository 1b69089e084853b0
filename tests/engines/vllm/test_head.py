"""The layer with 32-bit logits for vLLM, over a stand-in for vLLM's layer."""

from types import SimpleNamespace
from typing import Any

import torch

from roll.engines.vllm.head import _layer, wide_logits


class Plain:
    """The used part of vLLM's layer."""

    org_vocab_size = 5

    def _get_logits(self, hidden_states: Any, lm_head: Any, embedding_bias: Any) -> Any:
        return "its own"

    def _gather_logits(self, logits: Any) -> Any:
        return logits


def test_logits_have_32_bits_without_padding_or_rounding() -> None:
    noise = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(rows, 64, generator=noise).mul(3).bfloat16() for rows in (7, 8))
    result = _layer(Plain)()._get_logits(hidden, SimpleNamespace(weight=weight), None)
    assert result.dtype == torch.float32 and result.shape == (7, 5)
    exact = hidden.double() @ weight[:5].double().t()
    torch.testing.assert_close(result.double(), exact, atol=1e-4, rtol=0)
    assert float((exact.bfloat16().double() - exact).abs().max()) > 0.1  # what rounding would do


def test_wide_or_packed_layers_are_left_to_vllm() -> None:
    wide, packed = torch.zeros(2, 3), torch.zeros(4, 3, dtype=torch.int8)
    layer = _layer(Plain)()
    assert layer._get_logits(wide, SimpleNamespace(weight=wide), None) == "its own"
    assert layer._get_logits(wide.bfloat16(), SimpleNamespace(weight=packed), None) == "its own"


def test_a_32_bit_model_needs_no_replacement() -> None:
    assert wide_logits("float32") == {}
