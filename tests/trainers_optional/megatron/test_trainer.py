"""The contract of trainers, publication, checkpoints and refusals of backend megatron, over real ranks."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.layout_ranks import RankProcesses
from benchmarks.layouts import CLIPPED, LAYOUTS, Reference, example
from roll.config.schema import Optimizer
from roll.conformance.trainers import OBJECTIVES, check_trainer
from roll.engines.megatron.ranks import MegatronLayout
from roll.errors import ConfigError
from roll.types import Spec
from roll.weights.channel import Disk
from roll.weights.digest import digest
from roll.weights.huggingface import read_tensors
from tests.engines import contract

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("megatron")]

ADAMW = Optimizer(lr=1e-2)


def layout(name: str) -> MegatronLayout:
    return MegatronLayout(url="", **LAYOUTS[name])


@pytest.mark.parametrize(("family", "name"), [("Qwen3", "dp2"), ("Qwen3-MoE", "tp2 ep2")])
@pytest.mark.parametrize(
    "promise", [contract.logprobs_are_about_their_own_token, contract.an_update_that_is_not_finite_changes_nothing]
)
def test_it_fulfils_the_contract(
    promise: Any, family: str, name: str, processes: RankProcesses, tmp_path: Path
) -> None:
    reference = Reference(family, tmp_path)
    processes.run(promise(processes.trainer(reference.case(layout(name), optimizer=ADAMW))))


@pytest.mark.parametrize(("family", "name"), [("Qwen3", "dp2"), ("DeepSeek-V3", "pp2 ep2")])
def test_it_resumes_from_its_save(family: str, name: str, processes: RankProcesses, tmp_path: Path) -> None:
    reference = Reference(family, tmp_path)
    case, path, batches = (
        reference.case(layout(name), optimizer=ADAMW),
        tmp_path / "saved",
        [example(96, seed) for seed in range(3)],
    )

    async def save_and_continue() -> Any:
        engine = processes.trainer(case)
        await engine.start()
        for batch in batches[:2]:
            await engine.update(batch, CLIPPED)
        await engine.save(path)
        result = await engine.update(batches[2], CLIPPED), await engine.send(3)
        await engine.stop()
        return result

    async def resume() -> Any:
        engine = processes.trainer(case)
        await engine.start()
        await engine.load(path)
        result = await engine.update(batches[2], CLIPPED), await engine.send(3)
        await engine.stop()
        return result

    assert processes.run(save_and_continue()) == processes.run(resume())


@pytest.mark.parametrize(
    ("family", "saved", "resumed", "changes"),
    [
        ("Qwen3", "tp2 pp2", "dp2", {"vocab_size": 95, "tie_word_embeddings": True}),
        ("Qwen2", "pp2", "tp2", {}),
        ("Qwen3-MoE", "tp2", "pp2 ep2", {}),
        ("DeepSeek-V3", "pp2 ep2", "tp2 ep2", {}),
    ],
)
def test_a_save_resumes_in_another_layout(
    family: str, saved: str, resumed: str, changes: Any, processes: RankProcesses, tmp_path: Path
) -> None:
    reference, path, batches = (
        Reference(family, tmp_path, **changes),
        tmp_path / "saved",
        [example(95, 1), example(95, 2)],
    )

    async def train(name: str, *, first: bool) -> dict[str, float]:
        engine = processes.trainer(reference.case(layout(name), optimizer=ADAMW))
        await engine.start()
        if first:
            await engine.update(batches[0], CLIPPED)
            await engine.save(path)
        else:
            await engine.load(path)
        await engine.update(batches[1], CLIPPED)
        result = await engine.update(batches[0], CLIPPED)
        await engine.stop()
        return result

    expected, ours = (processes.run(train(name, first=first)) for name, first in ((saved, True), (resumed, False)))
    assert ours["loss/policy"] == pytest.approx(expected["loss/policy"], abs=1e-4)
    assert ours["loss/grad_norm"] == pytest.approx(expected["loss/grad_norm"], rel=1e-2)


def test_a_background_save_holds_the_state_of_its_call(processes: RankProcesses, tmp_path: Path) -> None:
    reference, batches = Reference("Qwen3", tmp_path), [example(96, seed) for seed in range(2)]
    case = reference.case(layout("tp2"), optimizer=ADAMW)

    async def save() -> Any:
        engine = processes.trainer(case)
        await engine.start()
        await engine.update(batches[0], CLIPPED)
        await engine.hold()
        await engine.save(tmp_path / "aside", wait=False)
        ahead = await engine.update(batches[1], CLIPPED)
        assert not await engine.save_completed()
        assert not (tmp_path / "aside").exists()
        await engine.release()
        async with asyncio.timeout(60):
            while not await engine.save_completed():
                await asyncio.sleep(0.01)
        await engine.load(tmp_path / "aside")
        resumed = await engine.update(batches[1], CLIPPED)
        await engine.stop()
        return ahead, resumed

    ahead, resumed = processes.run(save())
    assert resumed == ahead


def test_all_ranks_report_a_background_save_that_fails(processes: RankProcesses, tmp_path: Path) -> None:
    reference = Reference("Qwen3", tmp_path)
    (tmp_path / "taken").write_text("no folder")

    async def save() -> None:
        engine = processes.trainer(reference.case(layout("dp2"), optimizer=ADAMW))
        await engine.start()
        await engine.save(tmp_path / "taken", wait=False)
        with pytest.raises(OSError, match="taken"):
            async with asyncio.timeout(60):
                while not await engine.save_completed():
                    await asyncio.sleep(0.01)
        with pytest.raises(OSError, match="taken"):
            await engine.save(tmp_path / "taken")
        await engine.stop()

    processes.run(save())


def test_a_directory_without_state_of_the_optimizer_is_refused(processes: RankProcesses, tmp_path: Path) -> None:
    reference = Reference("Qwen3", tmp_path)

    async def load() -> None:
        engine = processes.trainer(reference.case(layout("dp2"), optimizer=ADAMW))
        await engine.start()
        try:
            await engine.load(reference.path)
        finally:
            await engine.stop()

    with pytest.raises(ConfigError, match=r"state\.json: no such file"):
        processes.run(load())


@pytest.mark.parametrize(
    ("family", "name", "changes"),
    [
        ("Qwen3", "tp2 pp2", {"tie_word_embeddings": True}),
        ("Qwen3-MoE", "tp2", {}),
        ("DeepSeek-V3", "tp2 ep2", {}),
    ],
)
def test_published_weights_are_those_of_the_directory(
    family: str, name: str, changes: Any, processes: RankProcesses, tmp_path: Path
) -> None:
    reference = Reference(family, tmp_path, **changes)
    channel = Spec("disk", {"directory": str(tmp_path / "weights")})
    case = reference.case(layout(name), optimizer=ADAMW, channel=channel)

    async def send() -> Any:
        engine = processes.trainer(case)
        await engine.start()
        result = await engine.send(7)
        await engine.save(tmp_path / "saved", resumable=False)
        await engine.stop()
        return result

    sent = processes.run(send())
    expected, saved = (dict(read_tensors(folder)) for folder in (reference.path, tmp_path / "saved"))
    received = dict(Disk(tmp_path / "weights").receive(version=7))
    assert sent == digest(expected.values())
    for tensors in (saved, received):
        assert sorted(tensors) == sorted(expected)
        assert all(torch.equal(tensors[name], expected[name]) for name in expected)


@pytest.mark.sweep(keep=1)
@pytest.mark.parametrize("name", ["tp2", "tp2 pp2", "cp2", "dp2"])
def test_the_conformance_kit_finds_no_fault(name: str, processes: RankProcesses, tmp_path: Path) -> None:
    reference = Reference("Qwen3", tmp_path, num_hidden_layers=2)

    def make(budget: int) -> Any:
        return processes.trainer(reference.case(layout(name), budget=min(budget, 4096)))

    assert processes.run(check_trainer(make, vocab=96, objectives=OBJECTIVES[:1])) == []
