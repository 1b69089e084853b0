"""Adapters over a frozen model of 16 bits on a GPU: compiled, packed, with the gradient of 32 bits up to rounding."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from roll.algorithms.recipe import Objective
from roll.config.lora import Lora
from roll.config.schema import Model, Optimizer
from roll.engines import lora
from roll.engines.decoder import Decoder
from roll.engines.mixed import Reading
from roll.engines.origin import Origin, build
from roll.engines.train.native import NativeTrainer, Settings
from roll.types import Batch, Call, Sampling
from roll.weights.adapters import write_adapter
from roll.weights.huggingface import write_model
from roll.weights.inline import Mailbox
from roll.weights.plan import Plan
from tests.engines.models import CPU, batch_of, prompts, small

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
CUDA = torch.device("cuda")
LORA = Lora(rank=8, alpha=16)


@pytest.fixture
def origin(tmp_path: Path) -> Origin:
    """A model whose numbers have 16 bits from the start, and an adapter that adds something."""
    numbers = {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
    decoder = small("qwen3", vocab_size=500, intermediate_size=256, initializer_range=0.1, **numbers)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.copy_(parameter.to(torch.bfloat16))
    write_model(tmp_path / "model", decoder.config, dict(decoder.named_tensors()))
    lora.begin(lora.attach(decoder, LORA), 0)
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, tensor in lora.adapter_tensors(decoder):
            if name.endswith("lora_B.weight"):
                tensor.copy_(torch.randn(tensor.shape, generator=noise) * 0.05)
    write_adapter(tmp_path / "adapter", LORA, lora.adapter_tensors(decoder), base=None)
    told = LORA.model_copy(update={"path": str(tmp_path / "adapter")})
    return Origin(model=Model(path=str(tmp_path / "model")), lora=told)


def settings(reading: Reading, device: torch.device) -> Settings:
    return Settings(
        optimizer=Optimizer(kind="sgd", lr=1.0, clip_norm=None),
        total_steps=10,
        tokens_per_microbatch=400,
        sampling=Sampling(),
        device=device,
        reading=reading,
    )


def given() -> Batch:
    return batch_of(prompts(24, vocab=500, shortest=4, longest=60, seed=3))


def learned(decoder: Decoder, reading: Reading, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradient of all adapters, and the logprobs of the model without them."""

    async def step() -> torch.Tensor:
        engine = NativeTrainer(decoder, settings(reading, device), Mailbox())
        await engine.start()
        assert (await engine.update(given(), Objective(loss=Call("clipped"))))["loss/refused"] == 0
        found = await engine.base_logprobs(given())
        await engine.send(Plan(names=()), 1)
        return found

    before = [tensor.detach().cpu().clone() for _, tensor in lora.adapter_tensors(decoder)]
    reference = asyncio.run(step())
    after = [tensor.detach().cpu() for _, tensor in lora.adapter_tensors(decoder)]
    return torch.cat([(old - new).flatten() for old, new in zip(before, after, strict=True)]), reference


@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_gradient_of_adapters_is_that_of_32_bits_up_to_rounding(origin: Origin, checkpointing: bool) -> None:
    wide, reference = learned(build(origin), Reading(), CPU)
    narrow = Reading(dtype=torch.bfloat16, checkpointing=checkpointing)
    held = build(replace(origin, frozen=torch.bfloat16), CUDA)
    assert held.device.type == "cuda" and held.embed.dtype == torch.bfloat16
    found, plain = learned(held, narrow, CUDA)
    assert float((found - wide).norm() / wide.norm()) < 0.05
    assert float((plain - reference).abs().mean()) < 0.02
    assert lora.frozen_digest(held).sums.keys() == {"torch.bfloat16"}


def test_nothing_but_adapters_has_a_gradient_or_is_held_twice(origin: Origin) -> None:
    held = build(replace(origin, frozen=torch.bfloat16), CUDA)
    learned(held, Reading(dtype=torch.bfloat16), CUDA)
    assert all(parameter.grad is None for parameter in held.parameters())
    frozen = [parameter for parameter in held.parameters() if not parameter.requires_grad]
    assert {parameter.dtype for parameter in frozen} == {torch.bfloat16}
