"""Weights in eight bits: exact rounding, the bound of its error, and a digest of what is sent."""

from typing import get_args

import pytest
import torch

from roll.config.quantization import Quantization
from roll.weights.channel import Mailbox
from roll.weights.digest import digest
from roll.weights.quantization import is_quantised, quantise, send_quantised

TINY = torch.finfo(torch.float32).tiny


def test_int8_rounds_half_to_even_with_a_scale_per_row() -> None:
    # The largest of the first row is 127, so its scale is 1; that of the second is 31.75 = 127 / 4.
    weight = torch.tensor([[127.0, -63.5, 0.5, 1.5, 2.5], [31.75, -31.75, 0.25, 0.1, 0.0]])
    rounded, scale = quantise(weight, "int8")
    assert rounded.tolist() == [[127, -64, 0, 2, 2], [127, -127, 1, 0, 0]] and rounded.dtype == torch.int8
    assert scale.tolist() == [[1.0], [0.25]]


def test_fp8_keeps_four_bits_of_each_number() -> None:
    # 448 is the largest number of the type. From 16 to 32 it has every second: 17 and 19 are halfway, 21.1 is above 21.
    rounded, scale = quantise(torch.tensor([[448.0, -448.0, 17.0, 19.0, 21.1, 2.0**-9, 2.0**-11]]), "fp8")
    assert rounded.float().tolist() == [[448, -448, 16, 20, 22, 2.0**-9, 0]] and scale.tolist() == [[1.0]]


@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_rows_of_zeros_and_of_subnormal_numbers_stay_finite(kind: Quantization) -> None:
    rounded, scale = quantise(torch.tensor([[0.0, 0.0], [TINY / 2, 0.0]]), kind)
    assert scale.tolist() == [[TINY], [TINY]]
    assert (rounded.float() * scale).isfinite().all() and not rounded[0].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_error_is_at_most_half_a_step(dtype: torch.dtype) -> None:
    """int8: half of the scale. fp8: a 16th of the number, or half of the smallest step, 2^-9 of the scale."""
    weight = torch.randn(64, 256, generator=torch.Generator().manual_seed(0)).to(dtype)
    for kind in get_args(Quantization):
        rounded, scale = quantise(weight, kind)
        half = torch.maximum(weight.float().abs() / 16, scale * 2**-10) if kind == "fp8" else scale / 2
        assert ((rounded.float() * scale - weight.float()).abs() <= half * (1 + 1e-4)).all()


def test_linear_weights_of_layers_alone_are_quantised() -> None:
    layer = "model.layers.11."
    assert all(
        is_quantised(f"{layer}{name}.weight")
        for name in ("self_attn.q_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.down_proj")
    )
    others = ("self_attn.q_proj.bias", "self_attn.q_norm.weight", "input_layernorm.weight", "mlp.gate.weight")
    assert not any(is_quantised(f"{layer}{name}") for name in others)
    assert not any(is_quantised(name) for name in ("model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"))


def test_the_digest_is_of_the_bytes_that_arrive() -> None:
    name, channel = "model.layers.0.mlp.up_proj.weight", Mailbox()
    tensors = {name: torch.randn(8, 16, generator=torch.Generator().manual_seed(0)), "model.norm.weight": torch.ones(8)}
    sent = send_quantised(channel, tensors.items(), "int8", version=3)
    arrived = dict(channel.receive(version=3))
    assert list(arrived) == [name, f"{name}_scale", "model.norm.weight"]
    assert digest(arrived.values()) == sent and sent.sums.keys() == {"torch.int8", "torch.float32"}
    arrived[name][3, 5] += 1
    assert digest(arrived.values()).sums["torch.int8"] != sent.sums["torch.int8"]
