"""Models of transformers by DeepSpeed on two ranks: the results of one process, also in 16 bits and recomputed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from roll.engines.native.mixed import Precision
from roll.weights.digest import digest, published_tensors
from tests.engines import contract
from tests.engines.fsdp.test_huggingface import batch, begun, some_families
from tests.engines.fsdp.test_trainer import CLIPPED, check_same_gradient, weights_after
from tests.engines.fsdp.test_trainer import batch as native_batch
from tests.engines.fsdp_team import Team, TrainerSpec, written
from tests.engines.models import batch_of, prompts, small
from tests.trainers_optional.conftest import NEEDS_DEEPSPEED

pytestmark = [NEEDS_DEEPSPEED, pytest.mark.slow, pytest.mark.xdist_group("fsdp")]


@pytest.mark.sweep(keep=2)
@pytest.mark.parametrize("stage", [3, 2])
@some_families
def test_the_gradient_is_that_of_one_process(name: str, stage: int, team: Team, tmp_path: Path) -> None:
    spec, decoder = begun(name, tmp_path, zero_stage=stage)
    check_same_gradient(team, spec, decoder, batch(), CLIPPED)


def test_weights_and_buffers_are_sent_as_one_process_sends_them(team: Team, tmp_path: Path) -> None:
    spec, decoder = begun("DeepSeek-V3", tmp_path, zero_stage=3)

    async def send() -> Any:
        engine = team.trainer(spec)
        await engine.start()
        sent = await engine.send(1)
        await engine.stop()
        return sent

    assert team.run(send()) == digest(tensor for _, tensor in published_tensors(decoder))


@pytest.mark.parametrize("engine", ["native", "hf"])
@pytest.mark.parametrize("stage", [2, 3])
def test_recomputation_changes_no_result(engine: str, stage: int, team: Team, tmp_path: Path) -> None:
    spec, example = TrainerSpec(path=written(small(), tmp_path / "model"), zero_stage=stage), native_batch()
    if engine == "hf":
        spec, example = begun("Qwen3-MoE", tmp_path / "hf", zero_stage=stage)[0], batch()
    plain = team.run(weights_after(team.trainer(spec), tmp_path / "plain", example, objective=CLIPPED))
    traded = replace(spec, precision=Precision(checkpointing=True))
    result = team.run(weights_after(team.trainer(traded), tmp_path / "traded", example, objective=CLIPPED))
    torch.testing.assert_close(result, plain, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_in_16_bits_master_weights_have_32(stage: int, team: Team, tmp_path: Path) -> None:
    decoder = small()
    half = Precision(dtype=torch.bfloat16)
    spec = TrainerSpec(path=written(decoder, tmp_path / "model"), precision=half, zero_stage=stage)
    example = batch_of(prompts(3, shortest=2, longest=5, seed=1))

    async def train(engine: Any) -> Any:
        await engine.start()
        before = await engine.send(0)
        metrics = await engine.update(example, CLIPPED), await engine.update(example, CLIPPED)
        await engine.save(tmp_path / "saved")
        ahead = await engine.update(example, CLIPPED)
        await engine.load(tmp_path / "saved")
        resumed = await engine.update(example, CLIPPED)
        await engine.stop()
        return before, metrics, ahead, resumed

    before, metrics, ahead, resumed = team.run(train(team.trainer(spec)))
    assert before == digest(tensor.bfloat16() for tensor in decoder.parameters())
    assert all(each["loss/refused"] == 0 and each["loss/grad_norm"] > 0 for each in metrics)
    assert resumed == ahead


def test_in_16_bits_stage_1_refuses_an_update_that_is_not_finite(team: Team, tmp_path: Path) -> None:
    half = Precision(dtype=torch.bfloat16)
    spec = TrainerSpec(path=written(small(), tmp_path / "model"), precision=half, zero_stage=1)
    team.run(contract.an_update_that_is_not_finite_changes_nothing(team.trainer(spec)))
