"""The forward pass in 16 bits: that of 32 bits up to rounding, over weights in 32 bits."""

import asyncio
from collections.abc import Iterable

import pytest
import torch

from roll.algorithms.recipe import Objective
from roll.config.schema import Optimizer
from roll.engines.native import mixed
from roll.engines.native.attention import Ragged
from roll.engines.native.decoder import Decoder
from roll.engines.native.mixed import Precision
from roll.engines.native.packed import PackedAttention
from roll.engines.native.trainer import NativeTrainer, NativeTrainerSettings
from roll.types import Sampling, Spec
from roll.weights.channel import Mailbox
from roll.weights.digest import digest
from tests.engines.models import CPU, batch_of, config, ours, peer, prompts, small, twin

ROWS = prompts(7, shortest=3, longest=20, seed=5)
NARROW = Precision(dtype=torch.bfloat16)


def trainer(
    decoder: Decoder, precision: Precision, *, optimizer: Optimizer | None = None, budget: int = 64
) -> NativeTrainer:
    settings = NativeTrainerSettings(
        optimizer=optimizer or Optimizer(kind="sgd", lr=1.0, max_grad_norm=None),
        total_steps=10,
        tokens_per_microbatch=budget,
        sampling=Sampling(temperature=0.9),
        device=CPU,
        precision=precision,
    )
    return NativeTrainer(decoder, settings, Mailbox())


def updated(decoder: Decoder, precision: Precision, *, budget: int = 64) -> torch.Tensor:
    """The gradient: the difference of all weights after one step of plain SGD."""

    async def step() -> None:
        engine = trainer(decoder, precision, budget=budget)
        await engine.start()
        assert (await engine.update(batch_of(ROWS), Objective(loss=Spec("clipped"))))["loss/refused"] == 0

    before = flat(decoder)
    asyncio.run(step())
    return before - flat(decoder)


def flat(decoder: Decoder) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in decoder.parameters()])


def apart(result: torch.Tensor, expected: torch.Tensor) -> float:
    return float((result - expected).norm() / expected.norm())


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_in_full_precision_it_equals_the_decoder(kind: str) -> None:
    decoder = ours(peer(config(kind)))
    ragged = Ragged([len(row) for row in ROWS], device=CPU)
    ids = torch.tensor([token for row in ROWS for token in row])
    expected = decoder.hidden(ids, ragged.positions, ragged.attend)
    result = mixed.hidden(decoder, ids, ragged.positions, ragged.attend, Precision())
    torch.testing.assert_close(result, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
@pytest.mark.slow
def test_its_gradient_is_that_of_full_precision_up_to_rounding(kind: str) -> None:
    decoder = small(kind, initializer_range=0.1)
    expected = updated(twin(decoder), Precision())
    assert expected.norm() > 0.01
    assert 1e-4 < apart(updated(twin(decoder), NARROW), expected) < 0.03


def test_activation_checkpointing_gives_the_same_gradient() -> None:
    retained, again = (Precision(dtype=torch.bfloat16, checkpointing=each) for each in (False, True))
    assert torch.equal(updated(small(), retained), updated(small(), again))


@pytest.mark.slow
def test_the_gradient_does_not_depend_on_micro_batches() -> None:
    # Rounding of products is all that differs; a wrong denominator would be a factor.
    assert apart(updated(small(), NARROW, budget=20), updated(small(), NARROW, budget=4096)) < 0.02


def test_steps_too_small_for_16_bits_still_add_up() -> None:
    decoder = small()
    before = flat(decoder)

    async def steps() -> None:
        engine = trainer(decoder, NARROW, optimizer=Optimizer(lr=1e-6))
        await engine.start()
        for _ in range(3):
            await engine.update(batch_of(ROWS), Objective(loss=Spec("clipped")))

    asyncio.run(steps())
    moved = (flat(decoder) - before).abs()
    assert flat(decoder).dtype == torch.float32
    assert float((moved > 2e-6).float().mean()) > 0.5
    assert float((flat(decoder).bfloat16() != before.bfloat16()).float().mean()) < 0.1


def test_published_weights_are_rounded_as_they_are_used() -> None:
    decoder = small()
    engine = trainer(decoder, NARROW)

    async def sent() -> tuple[object, Iterable[tuple[str, torch.Tensor]]]:
        await engine.start()
        result = await engine.send(0)
        return result, engine.channel.receive(version=0)

    reply, tensors = asyncio.run(sent())
    arrived = dict(tensors)
    assert {tensor.dtype for tensor in arrived.values()} == {torch.bfloat16}
    assert reply == digest(arrived.values())
    for name, tensor in decoder.named_tensors():
        assert torch.equal(arrived[name], tensor.bfloat16())


def test_packed_sequences_have_the_positions_of_ragged_ones() -> None:
    lengths = [len(row) for row in ROWS]
    packed, ragged = PackedAttention(lengths, device=CPU), Ragged(lengths, device=CPU)
    assert torch.equal(packed.positions, ragged.positions)
    assert torch.equal(packed.last, ragged.last)
    places = torch.tensor([0, 5, 9])
    assert torch.equal(packed.flat_index(places), ragged.flat_index(places))


def test_the_forward_pass_uses_weights_as_published() -> None:
    trained = ours(peer(config("qwen3")))
    rounded = twin(trained)
    with torch.no_grad():
        for parameter in rounded.parameters():
            parameter.copy_(parameter.bfloat16())
    assert not torch.equal(flat(trained), flat(rounded))

    async def scored(decoder: Decoder) -> torch.Tensor:
        engine = trainer(decoder, NARROW)
        await engine.start()
        return await engine.logprobs(batch_of(ROWS))

    assert torch.equal(asyncio.run(scored(trained)), asyncio.run(scored(rounded)))


def test_exact_arithmetic_is_that_of_a_model_with_rounded_weights() -> None:
    decoder = small("qwen3", initializer_range=0.1)
    around = twin(decoder)
    with torch.no_grad():
        for parameter in around.parameters():
            parameter.copy_(parameter.bfloat16())
    exact = Precision(dtype=torch.bfloat16, exact=True)

    async def scored(decoder: Decoder, precision: Precision) -> torch.Tensor:
        engine = trainer(decoder, precision)
        await engine.start()
        return await engine.logprobs(batch_of(ROWS))

    expected = asyncio.run(scored(around, Precision()))
    torch.testing.assert_close(asyncio.run(scored(decoder, exact)), expected, atol=1e-5, rtol=0)
    assert float((asyncio.run(scored(decoder, Precision())) - expected).abs().max()) > 1e-3
    assert apart(updated(decoder, exact), updated(around, Precision())) < 1e-4
    sent = asyncio.run(trainer(decoder, exact).send(0))
    assert set(sent.sums) == {"torch.bfloat16"}
