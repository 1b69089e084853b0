"""Router replay: a trainer computes each token with the experts it is given, and chooses itself where none are."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.families import family_model
from roll.config.schema import Optimizer
from roll.conformance.trainers import OBJECTIVES
from roll.engines.hf.decoder import HuggingFaceDecoder
from roll.engines.hf.experts import routers_of
from roll.engines.native.attention import Ragged
from roll.engines.native.mixed import Precision
from roll.engines.native.trainer import NativeTrainer
from roll.types import Batch
from tests.engines.models import batch_of, prompts, trainer

pytestmark = pytest.mark.slow

ROWS = prompts(4, vocab=96, shortest=3, longest=40, seed=1)
CPU = torch.device("cpu")
families = pytest.mark.parametrize("name", ["Qwen3-MoE", "Mixtral", "DeepSeek-V3", "GPT-OSS"])


class Chosen:
    """Records what the routers of a decoder return: [tokens, layers, k], -1 for a layer without experts."""

    def __init__(self, decoder: HuggingFaceDecoder) -> None:
        self.num_layers = decoder.config.num_hidden_layers
        self.rows: list[Tensor] = []
        for router in routers_of(decoder):
            router.register_forward_hook(lambda module, inputs, output: self.rows.append(output[2]))

    def take(self) -> Tensor:
        rows, self.rows = self.rows, []
        dense = [torch.full_like(rows[0], -1)] * (self.num_layers - len(rows))
        return torch.stack([*dense, *rows], 1)


def hidden(decoder: HuggingFaceDecoder, row: list[int], experts: Tensor | None = None, **precision: Any) -> Tensor:
    layout = Ragged((len(row),), device=CPU)
    ids = torch.tensor(row)[layout.flat_tokens]
    return decoder.hidden(ids, layout.positions, layout.attend, Precision(**precision), experts)


def others(decoder: HuggingFaceDecoder, chosen: Tensor) -> Tensor:
    """Other experts than these, wherever a layer has experts."""
    weight: Any = routers_of(decoder)[0].weight
    return torch.where(chosen < 0, chosen, (chosen + 1) % len(weight))


@families
def test_routers_return_the_given_experts_and_their_own_where_none_are_given(name: str) -> None:
    decoder, row = HuggingFaceDecoder(family_model(name)), ROWS[3]
    chosen = Chosen(decoder)
    own_states = hidden(decoder, row)
    own = chosen.take()
    assert torch.equal(hidden(decoder, row, own.to(torch.int16)), own_states)
    chosen.take()
    given = others(decoder, own)
    given[5:] = -1
    states = hidden(decoder, row, given)
    replayed = chosen.take()
    assert torch.equal(replayed[:5], given[:5].where(given[:5] >= 0, own[:5]))
    first = decoder.config.num_hidden_layers - len(routers_of(decoder))  # its inputs do not depend on experts
    assert torch.equal(replayed[5:, first], own[5:, first])
    assert not torch.allclose(states[:5], own_states[:5], rtol=1e-3)


@families
def test_the_gradient_is_the_same_with_recomputed_activations(name: str) -> None:
    gradients: list[Tensor] = []
    for checkpointing in (False, True):
        decoder = HuggingFaceDecoder(family_model(name))
        chosen = Chosen(decoder)
        hidden(decoder, ROWS[3])
        given = others(decoder, chosen.take())
        hidden(decoder, ROWS[3], given, checkpointing=checkpointing).square().sum().backward()
        gradients.append(torch.cat([each.grad.flatten() for each in decoder.parameters() if each.grad is not None]))
    assert gradients[0].norm() > 0 and torch.equal(*gradients)


def replayed(decoder: HuggingFaceDecoder, batch: Batch) -> Batch:
    """The batch with other experts than the decoder's own; entry t is the pass before token t."""
    chosen = Chosen(decoder)
    rows: list[Tensor] = []
    for row in ROWS:
        hidden(decoder, row)
        given = others(decoder, chosen.take())
        rows.append(torch.cat([torch.full_like(given[:1], -1), given[:-1]]))
    return replace(batch, experts=torch.cat(rows).to(torch.int16))


@pytest.mark.parametrize("budget", [4096, 45])
def test_a_trainer_shifts_experts_by_one_token_in_every_micro_batch(budget: int) -> None:
    decoder = HuggingFaceDecoder(family_model("Qwen3-MoE"))
    batch = replayed(decoder, batch_of(ROWS))
    assert batch.experts is not None
    found = asyncio.run(trainer(decoder, budget=budget).logprobs(batch))
    start = 0
    for row in ROWS:
        given = batch.experts[start : start + len(row)]
        states = hidden(decoder, row, torch.cat([given[1:], torch.full_like(given[:1], -1)]))
        logprobs = (states @ decoder.head.t()).log_softmax(-1)[:-1].gather(-1, torch.tensor(row[1:])[:, None])
        assert torch.allclose(found[start + 1 : start + len(row)], logprobs.squeeze(-1), atol=1e-5)
        start += len(row)


def updated(engine: NativeTrainer, batch: Batch) -> dict[str, float]:
    async def use() -> dict[str, float]:
        await engine.start()
        return await engine.update(batch, OBJECTIVES[0])

    return asyncio.run(use())


def test_the_share_of_changed_choices_is_a_metric() -> None:
    decoder = HuggingFaceDecoder(family_model("Qwen3-MoE"))
    plain = batch_of(ROWS)
    batch = replayed(decoder, plain)
    assert batch.experts is not None
    engine = trainer(decoder, optimizer=Optimizer(lr=1e-9))
    assert updated(engine, batch)["experts/replay_changed"] > 0.9
    first = replace(batch, experts=torch.full_like(batch.experts, -1))
    assert "experts/replay_changed" not in updated(engine, first)
    assert "experts/replay_changed" not in updated(engine, plain)


def test_a_critic_chooses_itself() -> None:
    model = family_model("Qwen3-MoE")
    batch = replayed(HuggingFaceDecoder(model), batch_of(ROWS))
    critic = trainer(HuggingFaceDecoder(family_model("Qwen3-MoE"), scored=True))
    torch.nn.init.ones_(critic.decoder.score)  # pyright: ignore[reportArgumentType]
    values = [asyncio.run(critic.values(each)) for each in (batch, replace(batch, experts=None))]
    assert values[0].any() and torch.equal(*values)
