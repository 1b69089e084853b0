"""The FSDP trainer on a GPU with one rank: the gradients of the CPU, and background saves."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch

from roll.algorithms.recipe import Objective
from roll.config.schema import Model, Optimizer
from roll.engines.fsdp.ranks import ParallelLayout, Ranks
from roll.engines.fsdp.trainer import FsdpTrainer
from roll.engines.native.mixed import Precision
from roll.engines.native.model_spec import ModelSpec
from roll.engines.native.trainer import NativeTrainerSettings
from roll.types import Sampling, Spec
from roll.weights.channel import Shared
from roll.weights.huggingface import read_tensors, write_model
from tests.engines.models import batch_of, prompts
from tests.engines.test_gpu_mixed import gradient, wider

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
CLIPPED = Objective(loss=Spec("clipped"))
SGD = Optimizer(kind="sgd", lr=1.0, max_grad_norm=None)
BATCH = batch_of(prompts(24, vocab=500, shortest=4, longest=60, seed=8))


def trainer(tmp_path: Path, precision: Precision, optimizer: Optimizer) -> FsdpTrainer:
    """A trainer with the weights of `wider`."""
    decoder = wider()
    write_model(tmp_path / "model", decoder.config, dict(decoder.named_tensors()))
    settings = NativeTrainerSettings(
        optimizer=optimizer,
        total_steps=10,
        tokens_per_microbatch=400,
        sampling=Sampling(temperature=0.9),
        device=torch.device("cuda", 0),
        precision=precision,
    )
    meeting = f"file://{tmp_path / 'meeting'}"
    model_spec = ModelSpec(model=Model(path=str(tmp_path / "model")))
    return FsdpTrainer(model_spec, settings, Ranks(ParallelLayout(url=meeting, size=1), 0), Shared())


def weights(path: Path) -> torch.Tensor:
    return torch.cat([tensor.flatten().float() for _, tensor in sorted(read_tensors(path), key=lambda each: each[0])])


@pytest.mark.parametrize(
    ("precision", "limit"),
    [
        (Precision(), 1e-4),
        (Precision(dtype=torch.bfloat16), 0.03),
        (Precision(dtype=torch.bfloat16, checkpointing=True), 0.03),
    ],
    ids=["fp32", "bf16", "bf16 checkpointing"],
)
def test_the_gradient_is_that_of_the_cpu(precision: Precision, limit: float, tmp_path: Path) -> None:
    async def step() -> None:
        engine = trainer(tmp_path, precision, SGD)
        await engine.start()
        await engine.save(tmp_path / "before", resumable=False)
        assert (await engine.update(BATCH, CLIPPED))["loss/refused"] == 0
        await engine.save(tmp_path / "after", resumable=False)
        await engine.stop()

    asyncio.run(step())
    decoder = wider()
    gradient(decoder, BATCH, Precision(), torch.device("cpu"))
    write_model(tmp_path / "wanted", decoder.config, dict(decoder.named_tensors()))
    expected, result = (weights(tmp_path / "before") - weights(tmp_path / name) for name in ("wanted", "after"))
    assert expected.norm() > 0.01
    assert float((result - expected).norm() / expected.norm()) < limit


def test_a_background_save_holds_the_state_of_its_call(tmp_path: Path) -> None:
    async def run() -> tuple[Any, Any]:
        engine = trainer(tmp_path, Precision(dtype=torch.bfloat16), Optimizer(lr=1e-2))
        await engine.start()
        await engine.update(BATCH, CLIPPED)
        await engine.save(tmp_path / "aside", wait=False)
        await engine.update(BATCH, CLIPPED)
        ahead = await engine.logprobs(BATCH)
        while not await engine.save_completed():
            await asyncio.sleep(0.01)
        await engine.load(tmp_path / "aside")
        await engine.update(BATCH, CLIPPED)
        caught_up = await engine.logprobs(BATCH)
        await engine.stop()
        return ahead, caught_up

    ahead, caught_up = asyncio.run(run())
    torch.testing.assert_close(caught_up, ahead, atol=0.05, rtol=0)
