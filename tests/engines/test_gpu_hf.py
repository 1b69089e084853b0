"""Models of transformers on a GPU: the logprobs and gradients of the CPU, in 32 bits and packed in 16."""

import asyncio
import copy
from dataclasses import replace
from typing import Any

import pytest
import torch

from benchmarks.families import FAMILIES, family_model
from roll.algorithms.recipe import Objective
from roll.config.schema import Optimizer
from roll.engines.hf.decoder import HuggingFaceDecoder
from roll.engines.native.mixed import Precision
from roll.engines.native.trainer import NativeTrainer
from roll.types import Spec
from roll.weights.channel import Shared
from tests.engines.models import CPU, batch_of, prompts, trainer

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]

CUDA = torch.device("cuda")
ROWS = prompts(6, vocab=96, shortest=12, longest=40, seed=3)
SGD = Optimizer(kind="sgd", lr=1.0, max_grad_norm=None)


async def learned(decoder: Any, device: torch.device, precision: Precision) -> tuple[torch.Tensor, torch.Tensor]:
    """Logprobs, and all gradients end to end: one update by SGD moves the weights by them."""
    batch = batch_of([ROWS[0][:10] + row[10:] for row in ROWS], prompt=10)
    settings = replace(trainer(decoder, optimizer=SGD).settings, device=device, precision=precision)
    engine = NativeTrainer(decoder, settings, Shared())
    await engine.start()
    logprobs = await engine.logprobs(batch)
    before = torch.cat([each.detach().flatten().clone() for each in decoder.parameters()])
    await engine.update(batch, Objective(loss=Spec("clipped")))
    after = torch.cat([each.detach().flatten() for each in decoder.parameters()])
    return logprobs, (before - after).cpu()


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("precision", [Precision(), Precision(dtype=torch.bfloat16)], ids=["32 bits", "16 bits"])
def test_results_are_those_of_the_cpu(name: str, precision: Precision) -> None:
    decoder = HuggingFaceDecoder(family_model(name))
    expected = asyncio.run(learned(copy.deepcopy(decoder), CPU, Precision()))
    found = asyncio.run(learned(decoder, CUDA, precision))
    near = (1e-3, 1e-3) if precision == Precision() else (0.15, 0.3)
    assert (found[0] - expected[0]).abs().mean() < near[0]
    assert (found[1] - expected[1]).norm() / expected[1].norm() < near[1]
