"""The layer that gives vLLM wide logits, over a stand-in for vLLM's own."""

from types import SimpleNamespace
from typing import Any

import torch

from roll.engines.vllm.head import _layer, wide_logits


class Plain:
    """What vLLM's layer has of it."""

    org_vocab_size = 5

    def _get_logits(self, hidden_states: Any, lm_head: Any, embedding_bias: Any) -> Any:
        return "its own"

    def _gather_logits(self, logits: Any) -> Any:
        return logits


def test_logits_have_thirty_two_bits_and_no_padding_and_are_not_rounded() -> None:
    noise = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(rows, 64, generator=noise).mul(3).bfloat16() for rows in (7, 8))
    found = _layer(Plain)()._get_logits(hidden, SimpleNamespace(weight=weight), None)
    assert found.dtype == torch.float32 and found.shape == (7, 5)
    exact = hidden.double() @ weight[:5].double().t()
    torch.testing.assert_close(found.double(), exact, atol=1e-4, rtol=0)
    assert float((exact.bfloat16().double() - exact).abs().max()) > 0.1  # what rounding would do


def test_what_is_wide_already_or_packed_is_left_to_vllm() -> None:
    wide, packed = torch.zeros(2, 3), torch.zeros(4, 3, dtype=torch.int8)
    layer = _layer(Plain)()
    assert layer._get_logits(wide, SimpleNamespace(weight=wide), None) == "its own"
    assert layer._get_logits(wide.bfloat16(), SimpleNamespace(weight=packed), None) == "its own"


def test_thirty_two_bits_need_nothing_and_no_vllm() -> None:
    assert wide_logits("float32") == {}
