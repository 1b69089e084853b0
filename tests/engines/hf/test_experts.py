"""Load of experts: tokens are counted once, also with recomputed activations, as `transformers` counts them."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from benchmarks.families import family_model
from roll.config.schema import Optimizer
from roll.conformance.trainers import OBJECTIVES
from roll.engines.hf.decoder import HuggingFaceDecoder
from roll.engines.hf.experts import load_metrics
from roll.engines.native.attention import Ragged
from roll.engines.native.mixed import Precision
from tests.engines.models import batch_of, prompts, trainer

pytestmark = pytest.mark.slow

ROWS = [[index + 5, *row[1:]] for index, row in enumerate(prompts(4, vocab=96, shortest=3, longest=40, seed=1))]
"""No two begin alike: a prefix that rows share is computed once, and counts once."""


def updated(name: str, **settings: Any) -> dict[str, float]:
    engine = trainer(HuggingFaceDecoder(family_model(name)), optimizer=Optimizer(lr=1e-4))
    engine.settings = replace(engine.settings, **settings)

    async def use() -> dict[str, float]:
        await engine.start()
        return await engine.update(batch_of(ROWS), OBJECTIVES[0])

    return asyncio.run(use())


@pytest.mark.parametrize("name", ["Qwen3-MoE", "Mixtral"])
def test_the_balance_is_that_of_transformers(name: str) -> None:
    model = family_model(name)
    layers: list[list[torch.Tensor]] = [
        list(model(torch.tensor([row[:-1]]), use_cache=False, output_router_logits=True).router_logits) for row in ROWS
    ]
    experts = layers[0][0].shape[-1]
    expected = [
        float(load_balancing_loss_func((torch.cat(rows).detach(),), experts, 2)) / 2
        for rows in zip(*layers, strict=True)
    ]
    metrics = updated(name)
    assert metrics["experts/balance"] == pytest.approx(sum(expected) / len(expected), rel=1e-4)
    assert 1 < metrics["experts/max_load"] <= experts / 2


@pytest.mark.parametrize("name", ["DeepSeek-V3", "GPT-OSS"])
def test_recomputed_activations_and_micro_batches_count_tokens_once(name: str) -> None:
    whole = updated(name)
    assert {key for key in whole if key.startswith("experts/")} == {
        *("experts/balance", "experts/max_load", "experts/unused")
    }
    for changes in ({"precision": Precision(checkpointing=True)}, {"tokens_per_microbatch": 40}):
        parts = updated(name, **changes)
        assert all(parts[key] == pytest.approx(whole[key], rel=1e-4) for key in whole if key.startswith("experts/"))


def test_only_tokens_of_a_counted_forward_pass_are_counted() -> None:
    decoder, row = HuggingFaceDecoder(family_model("Mixtral")), torch.tensor(ROWS[0])
    layout = Ragged((len(row),), device=torch.device("cpu"))
    ids, precision = row[layout.flat_tokens], Precision(checkpointing=True)
    with decoder.expert_load.counting():
        states = decoder.hidden(ids, layout.positions, layout.attend, precision)
    states.sum().backward()  # computes the layers again
    decoder.hidden(ids, layout.positions, layout.attend)
    totals = decoder.expert_load.totals()
    assert totals is not None
    assert torch.equal(totals[:, 0].sum(-1), torch.full((len(totals),), 2.0 * len(ids)))


def test_a_dense_model_has_no_experts() -> None:
    assert not any(key.startswith("experts/") for key in updated("Gemma 2"))


def test_even_and_uneven_loads() -> None:
    even = torch.ones(2, 2, 4)
    assert load_metrics(even) == {"experts/max_load": 1.0, "experts/unused": 0.0, "experts/balance": 1.0}
    one = torch.tensor([[[8.0, 0, 0, 0], [8.0, 0, 0, 0]]])
    assert load_metrics(one) == {"experts/max_load": 4.0, "experts/unused": 0.75, "experts/balance": 4.0}
