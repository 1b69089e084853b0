"""Quantised weights are put into the memory that kernels on a GPU read: what can be tested without vLLM."""

import asyncio
from collections.abc import Iterable
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from roll.config.schema import Model, Shape
from roll.engines.native.model_spec import ModelSpec
from roll.engines.vllm.generator import VllmGenerator, VllmSettings
from roll.engines.vllm.quantised import attested_parts, is_quantised_layer, load_quantised
from roll.errors import RunStopped
from roll.weights.buckets import NamedTensor
from roll.weights.channel import Mailbox, Shared
from roll.weights.digest import digest
from roll.weights.quantization import send_quantised
from tests.engines.models import request

LAYER = "model.layers.0"
ROWS = {"qkv_proj": {"q_proj": 8, "k_proj": 4, "v_proj": 4}, "o_proj": {"o_proj": 8}}


class Fused(nn.Module):
    """As in vLLM on a GPU: weights [in, out] over memory by rows, with a scale per row."""

    def __init__(self, parts: dict[str, int]) -> None:
        super().__init__()
        self.scheme, self.bias, self.logical_widths = object(), None, list(parts.values())
        self.input_size_per_partition, rows = 8, sum(parts.values())
        self.weight = nn.Parameter(torch.zeros(rows, 8, dtype=torch.int8).t(), requires_grad=False)
        self.weight_scale = nn.Parameter(torch.zeros(rows, 1), requires_grad=False)


class Loading:
    """A model of vLLM with one attention layer; it keeps the other tensors."""

    def __init__(self) -> None:
        self.layers = {f"{LAYER}.self_attn.{name}": Fused(parts) for name, parts in ROWS.items()}
        self.loaded: list[str] = []

    def named_modules(self) -> Iterable[tuple[str, nn.Module]]:
        return self.layers.items()

    def load_weights(self, tensors: Iterable[NamedTensor]) -> None:
        self.loaded = [name for name, _ in tensors]


def arriving() -> tuple[Mailbox, dict[str, torch.Tensor]]:
    noise = torch.Generator().manual_seed(0)
    names = {name: rows for parts in ROWS.values() for name, rows in parts.items()}
    tensors = {
        f"{LAYER}.self_attn.{name}.weight": torch.randn(rows, 8, generator=noise) for name, rows in names.items()
    }
    return Mailbox(), {"model.norm.weight": torch.ones(8), **tensors}


def test_fused_layers_get_the_rows_of_each_projection_in_place() -> None:
    (channel, tensors), model = arriving(), Loading()
    fused, output = model.layers.values()
    memory = [fused.weight.data_ptr(), fused.weight_scale.data_ptr()]
    for version in range(2):
        tensors = {name: tensor * (1 + version) + version for name, tensor in tensors.items()}
        quantised = {name: tensor for name, tensor in tensors.items() if "norm" not in name}
        sent = send_quantised(channel, quantised.items(), "int8", version=version)
        load_quantised(model, [("model.norm.weight", torch.ones(8)), *channel.receive(version=version)], repack=False)
        assert model.loaded == ["model.norm.weight"]
        assert digest(part for layer in (fused, output) for part in attested_parts(layer, packed=False)) == sent
    assert [fused.weight.data_ptr(), fused.weight_scale.data_ptr()] == memory, "CUDA graphs read this memory"
    keys = tensors[f"{LAYER}.self_attn.k_proj.weight"]  # rows 8 to 11 of the fused weight
    near = fused.weight.t()[8:12].float() * fused.weight_scale[8:12]
    assert (near - keys).abs().max() <= fused.weight_scale[8:12].max() / 2 * 1.0001


def test_an_unknown_layout_of_a_kernel_is_refused() -> None:
    (channel, tensors), model = arriving(), Loading()
    fused = model.layers[f"{LAYER}.self_attn.qkv_proj"]
    fused.weight = nn.Parameter(torch.zeros(16, 16, dtype=torch.int8).t(), requires_grad=False)
    send_quantised(channel, tensors.items(), "int8", version=0)
    with pytest.raises(ValueError, match=r"the kernel of model\.layers\.0\.self_attn\.qkv_proj stores its weight in a"):
        load_quantised(model, channel.receive(version=0), repack=False)


def test_only_layers_with_a_scheme_and_scales_are_quantised() -> None:
    assert is_quantised_layer(Fused({"o_proj": 8}))
    assert not is_quantised_layer(nn.Linear(8, 8)) and not is_quantised_layer(SimpleNamespace(scheme=None))


def test_nothing_is_sampled_with_the_random_weights_of_the_start() -> None:
    settings = VllmSettings(
        max_seq_len=64, max_num_seqs=2, max_num_batched_tokens=64, progress_interval=8, quantization="int8"
    )
    engine = VllmGenerator(ModelSpec(model=Model(shape=Shape())), settings, Shared())
    with pytest.raises(RunStopped, match=r"actor_infer.quantization: no weights have been published yet"):
        asyncio.run(engine.submit([request("a", [1, 2])]))
