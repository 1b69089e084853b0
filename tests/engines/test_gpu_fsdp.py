"""The trainer of many ranks on a GPU, as one rank: the same gradients, and checkpoints written behind its back."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch

from roll.algorithms.recipe import Objective
from roll.config.schema import Model, Optimizer
from roll.engines.fsdp.ranks import Ranks, Spread
from roll.engines.fsdp.trainer import FsdpTrainer
from roll.engines.native.mixed import Reading
from roll.engines.native.model_spec import Origin
from roll.engines.native.trainer import Settings
from roll.types import Call, Sampling
from roll.weights.huggingface import read_tensors, write_model
from roll.weights.inline import Shared
from tests.engines.models import batch_of, prompts
from tests.engines.test_gpu_mixed import gradient, wider

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
CLIPPED = Objective(loss=Call("clipped"))
SGD = Optimizer(kind="sgd", lr=1.0, clip_norm=None)
BATCH = batch_of(prompts(24, vocab=500, shortest=4, longest=60, seed=8))


def trainer(tmp_path: Path, reading: Reading, optimizer: Optimizer) -> FsdpTrainer:
    """With the weights of `wider`."""
    decoder = wider()
    write_model(tmp_path / "model", decoder.config, dict(decoder.named_tensors()))
    settings = Settings(
        optimizer=optimizer,
        total_steps=10,
        tokens_per_microbatch=400,
        sampling=Sampling(temperature=0.9),
        device=torch.device("cuda", 0),
        reading=reading,
    )
    meeting = f"file://{tmp_path / 'meeting'}"
    origin = Origin(model=Model(path=str(tmp_path / "model")))
    return FsdpTrainer(origin, settings, Ranks(Spread(url=meeting, size=1), 0), Shared())


def weights(path: Path) -> torch.Tensor:
    return torch.cat([tensor.flatten().float() for _, tensor in sorted(read_tensors(path), key=lambda each: each[0])])


@pytest.mark.parametrize(
    ("reading", "limit"),
    [
        (Reading(), 1e-4),
        (Reading(dtype=torch.bfloat16), 0.03),
        (Reading(dtype=torch.bfloat16, checkpointing=True), 0.03),
    ],
    ids=["fp32", "bf16", "bf16 checkpointing"],
)
def test_the_gradient_is_that_of_the_cpu(reading: Reading, limit: float, tmp_path: Path) -> None:
    async def step() -> None:
        engine = trainer(tmp_path, reading, SGD)
        await engine.start()
        await engine.save(tmp_path / "before", resumable=False)
        assert (await engine.update(BATCH, CLIPPED))["loss/refused"] == 0
        await engine.save(tmp_path / "after", resumable=False)
        await engine.stop()

    asyncio.run(step())
    decoder = wider()
    gradient(decoder, BATCH, Reading(), torch.device("cpu"))
    write_model(tmp_path / "wanted", decoder.config, dict(decoder.named_tensors()))
    wanted, found = (weights(tmp_path / "before") - weights(tmp_path / name) for name in ("wanted", "after"))
    assert wanted.norm() > 0.01
    assert float((found - wanted).norm() / wanted.norm()) < limit


def test_what_is_written_behind_its_back_is_what_it_held(tmp_path: Path) -> None:
    async def run() -> tuple[Any, Any]:
        engine = trainer(tmp_path, Reading(dtype=torch.bfloat16), Optimizer(lr=1e-2))
        await engine.start()
        await engine.update(BATCH, CLIPPED)
        await engine.save(tmp_path / "aside", wait=False)
        await engine.update(BATCH, CLIPPED)
        ahead = await engine.logprobs(BATCH)
        while not await engine.written():
            await asyncio.sleep(0.01)
        await engine.load(tmp_path / "aside")
        await engine.update(BATCH, CLIPPED)
        caught_up = await engine.logprobs(BATCH)
        await engine.stop()
        return ahead, caught_up

    ahead, caught_up = asyncio.run(run())
    torch.testing.assert_close(caught_up, ahead, atol=0.05, rtol=0)
