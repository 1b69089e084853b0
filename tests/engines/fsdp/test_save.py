"""Background saves on many ranks: they hold the state of their call, and all ranks report a failure."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch

from roll.algorithms.recipe import Objective
from roll.engines.fsdp.checkpoint import BackgroundSave
from roll.errors import ConfigError
from roll.types import Batch, Spec
from roll.weights.huggingface import read_tensors
from tests.engines.fsdp_team import ShardedTrainer, Team, TrainerSpec, written
from tests.engines.models import batch_of, prompts, small

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("fsdp")]
CLIPPED = Objective(loss=Spec("clipped"))


def batch() -> Batch:
    return batch_of(prompts(6, shortest=2, longest=20, seed=3))


async def settled(engine: ShardedTrainer) -> None:
    async with asyncio.timeout(60):
        while not await engine.save_completed():
            await asyncio.sleep(0.01)


def test_the_failure_of_a_background_save_stays_until_it_is_asked_for() -> None:
    def fail() -> None:
        raise OSError(28, "No space left on device")

    save = BackgroundSave()
    save.begin(fail)
    save.settle()  # another save waits for it
    assert save.fault() == "OSError: [Errno 28] No space left on device"
    save.forget()
    with pytest.raises(AssertionError, match="no save"):
        save.fault()
    save.close()


@pytest.mark.sweep(keep=1)
@pytest.mark.parametrize("layout", [{"size": 2}, {"size": 4, "tp": 2}], ids=["dp2", "dp2 tp2"])
def test_a_background_save_holds_the_state_of_its_call(layout: dict[str, int], team: Team, tmp_path: Path) -> None:
    spec = TrainerSpec(path=written(small(), tmp_path / "model"), **layout)

    async def save() -> tuple[Any, Any]:
        engine = team.trainer(spec)
        await engine.start()
        await engine.update(batch(), CLIPPED)
        await engine.save(tmp_path / "waited")
        await engine.hold()
        await engine.save(tmp_path / "aside", wait=False)
        ahead = await engine.update(batch(), CLIPPED)
        assert not await engine.save_completed()
        assert not (tmp_path / "aside/model.safetensors").exists()
        await engine.release()
        await settled(engine)
        await engine.stop()
        other = team.trainer(spec)
        await other.start()
        await other.load(tmp_path / "aside")
        caught_up = await other.update(batch(), CLIPPED)
        await other.stop()
        return ahead, caught_up

    ahead, caught_up = team.run(save())
    assert caught_up == ahead
    waited, aside = (dict(read_tensors(tmp_path / name)) for name in ("waited", "aside"))
    assert waited.keys() == aside.keys()
    assert all(torch.equal(waited[name], aside[name]) for name in waited)


def test_a_save_and_the_stop_wait_for_the_save_before(team: Team, tmp_path: Path) -> None:
    async def save() -> None:
        engine = team.trainer(TrainerSpec(path=written(small(), tmp_path / "model")))
        await engine.start()
        await engine.save(tmp_path / "first", wait=False)
        await engine.save(tmp_path / "second", wait=False)
        assert (tmp_path / "first/optimizer/state.json").is_file()
        await engine.stop()

    team.run(save())
    assert (tmp_path / "second/optimizer/state.json").is_file()


def test_a_failed_write_is_reported_by_all_ranks_and_training_continues(team: Team, tmp_path: Path) -> None:
    async def save() -> None:
        engine = team.trainer(TrainerSpec(path=written(small(), tmp_path / "model")))
        await engine.start()
        (tmp_path / "taken").write_text("no folder")
        await engine.save(tmp_path / "taken", resumable=False, wait=False)
        with pytest.raises(OSError, match="taken"):
            await settled(engine)
        await engine.save(tmp_path / "saved", wait=False)
        await settled(engine)
        await engine.stop()

    team.run(save())
    assert (tmp_path / "saved/model.safetensors").is_file()


def test_an_optimizer_state_without_its_files_is_one_line(team: Team, tmp_path: Path) -> None:
    spec = TrainerSpec(path=written(small(), tmp_path / "model"), size=2)

    async def load() -> None:
        engine = team.trainer(spec)
        await engine.start()
        await engine.save(tmp_path / "saved")
        folder, before = tmp_path / "saved/optimizer", await engine.send(1)
        for file in folder.glob("*.safetensors"):
            file.unlink()
        with pytest.raises(ConfigError, match=r"optimizer: no step/.*; it is incomplete or of another model, resume"):
            await engine.load(tmp_path / "saved")
        (folder / "state.json").unlink()
        with pytest.raises(ConfigError, match=r"state.json: no such file, so the optimizer's state is of an earlier"):
            await engine.load(tmp_path / "saved")
        assert await engine.send(1) == before
        await engine.stop()

    team.run(load())
