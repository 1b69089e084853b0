"""The trainer in 16 bits on a GPU: packed attention, compiled layers, logprobs in chunks."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from roll.algorithms.recipe import Objective
from roll.config.schema import Optimizer
from roll.engines.native import fp8
from roll.engines.native.attention import Ragged, sharing
from roll.engines.native.decoder import Decoder
from roll.engines.native.fp8 import Fp8
from roll.engines.native.likelihood import likelihood
from roll.engines.native.mixed import Precision
from roll.engines.native.packed import PackedAttention
from roll.engines.native.trainer import NativeTrainer, NativeTrainerSettings
from roll.types import Batch, Sampling, Spec
from roll.weights.channel import Mailbox
from tests.engines.models import CPU, batch_of, prompts, small, twin

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
CUDA = torch.device("cuda")
NARROW = Precision(dtype=torch.bfloat16)


def wider(**changes: Any) -> Decoder:
    numbers: dict[str, Any] = {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
    return small("qwen3", vocab_size=500, intermediate_size=256, **{"initializer_range": 0.1, **numbers, **changes})


def rows(seed: int, longest: int = 60) -> list[list[int]]:
    return prompts(24, vocab=500, shortest=4, longest=longest, seed=seed)


def siblings(sizes: Sequence[int]) -> list[list[int]]:
    """Groups of these numbers of rows, with a prompt of 21 tokens per group."""
    contexts = prompts(len(sizes), vocab=500, shortest=21, longest=21, seed=1)
    replies = iter(prompts(sum(sizes), vocab=500, shortest=1, longest=60, seed=2))
    return [contexts[group] + next(replies) for group, size in enumerate(sizes) for _ in range(size)]


def trainer(decoder: Decoder, precision: Precision, device: torch.device) -> NativeTrainer:
    settings = NativeTrainerSettings(
        optimizer=Optimizer(kind="sgd", lr=1.0, max_grad_norm=None),
        total_steps=10,
        tokens_per_microbatch=400,
        sampling=Sampling(temperature=0.9),
        device=device,
        precision=precision,
    )
    return NativeTrainer(decoder, settings, Mailbox())


def gradient(decoder: Decoder, batch: Batch, precision: Precision, device: torch.device) -> torch.Tensor:
    async def step() -> None:
        engine = trainer(decoder, precision, device)
        await engine.start()
        assert (await engine.update(batch, Objective(loss=Spec("clipped"))))["loss/refused"] == 0

    before = [parameter.detach().cpu().clone() for parameter in decoder.parameters()]
    asyncio.run(step())
    after = [parameter.detach().cpu() for parameter in decoder.parameters()]
    return torch.cat([(old - new).flatten() for old, new in zip(before, after, strict=True)])


@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (9, 3)])
def test_packed_attention_is_that_of_padded_sequences(heads: tuple[int, int]) -> None:
    lengths = [37, 5, 64, 1, 200]
    noise = torch.Generator(CUDA).manual_seed(0)
    sizes = (heads[0], heads[1], heads[1])
    example = [torch.randn(sum(lengths), size, 64, device=CUDA, generator=noise) for size in sizes]
    result: list[list[torch.Tensor]] = []
    for kind in (Ragged, PackedAttention):
        q, k, v = (each.bfloat16().requires_grad_() for each in example)
        mixed = kind(lengths, device=CUDA).attend(0, q, k, v)
        (mixed.float() * torch.linspace(0, 1, mixed.numel(), device=CUDA).view_as(mixed)).sum().backward()
        result.append([each.detach().float() for each in (mixed, q.grad, k.grad, v.grad) if each is not None])
    for padded, packed in zip(*result, strict=True):
        assert float((packed - padded).norm() / padded.norm()) < 0.01


@pytest.mark.parametrize("sizes", [(4, 4), (3, 1, 5)])
def test_packed_siblings_share_their_prompts_as_padded_ones_do(sizes: tuple[int, ...]) -> None:
    batch = batch_of(siblings(sizes), prompt=21)
    noise = torch.Generator(CUDA)
    result: list[list[torch.Tensor]] = []
    for kind in (Ragged, PackedAttention):
        layout = kind(batch.lengths, device=CUDA, shared=replace(sharing(batch), read=batch.lengths))
        noise.manual_seed(0)
        example = [torch.randn(len(layout.positions), size, 64, device=CUDA, generator=noise) for size in (4, 2, 2)]
        q, k, v = (each.bfloat16().requires_grad_() for each in example)
        mixed = layout.attend(0, q, k, v)
        (mixed.float() * torch.linspace(0, 1, mixed.numel(), device=CUDA).view_as(mixed)).sum().backward()
        result.append([each.detach().float() for each in (mixed, q.grad, k.grad, v.grad) if each is not None])
    for padded, packed in zip(*result, strict=True):
        assert float((packed - padded).norm() / padded.norm()) < 0.01


def test_the_gradient_of_siblings_is_that_of_the_cpu_up_to_rounding() -> None:
    decoder, batch = wider(), batch_of(siblings((8, 8, 8)), prompt=21)
    expected = gradient(twin(decoder), batch, Precision(), CPU)
    result = gradient(decoder, batch, NARROW, CUDA)
    assert expected.norm() > 0.01
    assert float((result - expected).norm() / expected.norm()) < 0.03


@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_gradient_is_that_of_the_cpu_up_to_rounding(*, checkpointing: bool) -> None:
    decoder, batch = wider(), batch_of(rows(8))
    expected = gradient(twin(decoder), batch, Precision(), CPU)
    result = gradient(decoder, batch, Precision(dtype=torch.bfloat16, checkpointing=checkpointing), CUDA)
    assert expected.norm() > 0.01
    assert float((result - expected).norm() / expected.norm()) < 0.03


def test_logprobs_are_those_of_the_cpu_up_to_rounding() -> None:
    decoder, batch = wider(), batch_of(rows(3))

    async def scored(decoder: Decoder, precision: Precision, device: torch.device) -> torch.Tensor:
        engine = trainer(decoder, precision, device)
        await engine.start()
        return await engine.logprobs(batch)

    expected = asyncio.run(scored(twin(decoder), Precision(), CPU))
    result = asyncio.run(scored(decoder, NARROW, CUDA))
    assert float((result - expected).abs().mean()) < 0.02


def test_another_number_of_tokens_is_not_compiled_again() -> None:
    decoder = wider()
    batches = [batch_of(rows(seed, longest=30 + 7 * seed)) for seed in range(6)]
    counted: list[int] = []

    async def steps() -> None:
        engine = trainer(decoder, NARROW, CUDA)
        await engine.start()
        for batch in batches:
            await engine.update(batch, Objective(loss=Spec("clipped")))
            counted.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])

    asyncio.run(steps())
    assert counted[-1] == counted[1]


def test_logits_are_not_rounded() -> None:
    noise = torch.Generator(CUDA).manual_seed(0)
    hidden, head = (torch.randn(rows, 128, device=CUDA, generator=noise).mul(3).bfloat16() for rows in (300, 500))
    ids = torch.arange(300, device=CUDA)
    logits = hidden.double() @ head.double().t()
    assert float(logits.abs().max()) > 200  # where bf16 knows whole numbers alone
    expected = logits.log_softmax(-1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)
    result, _ = likelihood(hidden, head.float(), ids, 1.0)
    torch.testing.assert_close(result.double(), expected, atol=2e-3, rtol=0)


@pytest.mark.parametrize("num_tokens", [1, 37, 256])
def test_the_fp8_kernel_is_the_emulated_product(num_tokens: int) -> None:
    noise = torch.Generator(CUDA).manual_seed(0)
    x, weight = (torch.randn(*size, device=CUDA, generator=noise) for size in ((num_tokens, 1024), (1024, 96)))
    x = x.bfloat16()
    x[0] = 0
    result = fp8.product(x, weight, True)
    expected = fp8.emulate(*fp8.quantise(x), *fp8.quantise(weight.bfloat16().t()))
    assert not result[0].any()
    assert float((result.float() - expected).norm()) <= 0.01 * float(expected.norm())


@pytest.mark.parametrize("forward", [False, True])
def test_an_update_with_fp8_products_has_nearly_the_gradient_of_16_bits(*, forward: bool) -> None:
    decoder, batch = wider(initializer_range=0.02), batch_of(siblings((8, 8, 8)), prompt=21)
    expected = gradient(twin(decoder), batch, NARROW, CUDA)
    result = gradient(decoder, batch, replace(NARROW, fp8=Fp8(forward=forward, least_size=0)), CUDA)
    assert not torch.equal(result, expected)
    cosine = torch.nn.functional.cosine_similarity(result.double(), expected.double(), dim=0)
    assert float(cosine) > 0.99
