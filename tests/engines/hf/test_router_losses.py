"""Losses of routers: their gradient is that of the formula over whole rows, however a batch is cut."""

import asyncio
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its customary name
from torch import Tensor

from benchmarks.families import family_model
from roll.config.router_losses import RouterLosses
from roll.config.schema import Optimizer
from roll.conformance.trainers import OBJECTIVES
from roll.engines.hf.decoder import HuggingFaceDecoder
from roll.engines.hf.experts import routers_of, scores_weight
from roll.engines.native.mixed import Precision
from roll.engines.native.trainer import NativeTrainer
from roll.errors import ConfigError
from roll.types import Batch
from roll.weights.channel import Shared
from tests.engines.models import batch_of, prompts, small, trainer

pytestmark = pytest.mark.slow

SGD = Optimizer(kind="sgd", lr=1.0, max_grad_norm=None)
BOTH = RouterLosses(balance=0.5, z=0.1)
FORMS = {
    "whole": {},
    "parts": {"tokens_per_microbatch": 45},
    "recomputed": {"precision": Precision(checkpointing=True)},
}
PROMPT = [7, 8, 9, 10, 11]
ROWS = [PROMPT + row for row in prompts(6, vocab=96, shortest=1, longest=30, seed=1)]
"""Siblings, whose prompt is computed once per micro-batch."""


def batch() -> Batch:
    """A batch without advantages, so that the gradient is that of the losses of routers."""
    plain = batch_of(ROWS, prompt=len(PROMPT))
    return replace(plain, advantages=torch.zeros(plain.num_tokens))


def weights(model: torch.nn.Module) -> Tensor:
    return torch.cat([each.detach().double().flatten() for each in model.parameters()])


def expected(name: str, losses: RouterLosses) -> Tensor:
    """The gradient of the formula, from forward passes of `transformers` over single rows."""
    model = family_model(name).eval()
    routers = routers_of(model)
    layers: list[list[tuple[Tensor, Tensor]]] = [[] for _ in routers]
    for router, layer in zip(routers, layers, strict=True):

        def record(module: Any, inputs: Any, output: Any, layer: Any = layer) -> None:
            layer.append((F.linear(inputs[0].flatten(0, -2), scores_weight(module)), output[2]))

        router.register_forward_hook(record)
    for row in ROWS:
        model(torch.tensor([row[:-1]]), use_cache=False)
    total = torch.zeros(())
    for rows in layers:
        logits, chosen = (torch.cat(parts) for parts in zip(*rows, strict=True))
        experts = logits.shape[-1]
        shares = torch.bincount(chosen.flatten(), minlength=experts) / chosen.numel()
        scores = logits.sigmoid() if name == "DeepSeek-V3" else logits.softmax(-1)
        means = (scores / scores.sum(-1, keepdim=True)).mean(0)
        total = (
            total + losses.balance * experts * (shares * means).sum() + losses.z * logits.logsumexp(-1).square().mean()
        )
    (total / len(layers)).backward()
    gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in model.parameters()]
    return torch.cat([each.double().flatten() for each in gradients])


def change(name: str, losses: RouterLosses, **settings: Any) -> Tensor:
    """What one update subtracts from the weights."""
    model = family_model(name)
    before = weights(model)
    engine = trainer(HuggingFaceDecoder(model), optimizer=SGD)
    engine = NativeTrainer(engine.decoder, replace(engine.settings, router_losses=losses, **settings), Shared())

    async def use() -> None:
        await engine.start()
        await engine.logprobs(batch())
        metrics = await engine.update(batch(), OBJECTIVES[0])
        assert math.isfinite(metrics["loss/grad_norm"])

    asyncio.run(use())
    return before - weights(model)


@pytest.mark.parametrize("name", ["Qwen3-MoE", "Mixtral", "DeepSeek-V3"])
@pytest.mark.parametrize("losses", [BOTH, RouterLosses(balance=1.0), RouterLosses(z=1.0)], ids=["both", "balance", "z"])
def test_the_gradient_is_that_of_the_formula(name: str, losses: RouterLosses) -> None:
    gradient = expected(name, losses)
    assert gradient.norm() > 1e-3
    for form, settings in FORMS.items():
        error = (change(name, losses, **settings) - gradient).norm() / gradient.norm()
        assert error < 1e-5, f"{form}: {error}"


def test_without_factors_nothing_is_added() -> None:
    assert not change("Qwen3-MoE", RouterLosses()).any()


def test_dense_models_are_refused() -> None:
    settings = replace(trainer(small()).settings, router_losses=BOTH)
    for decoder in (small(), HuggingFaceDecoder(family_model("Gemma 2"))):
        with pytest.raises(ConfigError, match="router_losses: the model has no routers"):
            NativeTrainer(decoder, settings, Shared())
