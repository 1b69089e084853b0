"""Weights of 16 bits over Megatron-Core's blocks: master weights, publication, saves and resuming."""

from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.layout_ranks import RankProcesses
from benchmarks.layouts import CLIPPED, LAYOUTS, Reference, example
from roll.algorithms.recipe import Objective
from roll.config.megatron import num_experts
from roll.config.schema import Optimizer
from roll.engines.megatron.ranks import MegatronLayout
from roll.engines.native.mixed import Precision
from roll.types import Spec
from roll.weights.channel import Disk
from roll.weights.digest import digest
from roll.weights.huggingface import read_tensors
from tests.trainers_optional.megatron.test_experts import replayed

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("megatron")]

HALF = Precision(dtype=torch.bfloat16)
LR = 1e-3
UNCLIPPED = Objective(loss=Spec("clipped", {"clip_low": 1.0, "clip_high": 1e6}))
ADAMW = Optimizer(lr=LR, max_grad_norm=None)
UNTRAINED = "e_score_correction_bias"
"""End of the names of buffers, which are not rounded."""


def layout(name: str) -> MegatronLayout:
    return MegatronLayout(url="", **LAYOUTS[name])


def tensors(directory: Path) -> dict[str, torch.Tensor]:
    return dict(read_tensors(directory))


@pytest.mark.parametrize(
    ("family", "name"),
    [("Qwen3", "dp2"), ("Qwen3", "tp2 pp2"), ("Qwen3-MoE", "tp2 ep2"), ("DeepSeek-V3", "pp2 ep2")],
)
def test_a_step_changes_master_weights_as_in_32_bits_and_publishes_them_rounded(
    family: str, name: str, processes: RankProcesses, tmp_path: Path
) -> None:
    """A step of AdamW moves each number by at most its learning rate, in the direction of its gradient's sign.

    The gradient of a clipped loss jumps where a ratio crosses a bound, and that of a router where another expert has
    the highest score. Rounding crosses both, so here no ratio is clipped, and experts are given.
    """
    reference = Reference(family, tmp_path, tie_word_embeddings=True)
    batch = replayed(reference) if num_experts(reference.config.to_dict()) else reference.batch

    async def step(folder: Path, **changes: Any) -> tuple[Any, Any]:
        channel = Spec("disk", {"directory": str(folder / "weights")})
        engine = processes.trainer(reference.case(layout(name), optimizer=ADAMW, channel=channel, **changes))
        await engine.start()
        await engine.save(folder / "start", resumable=False)
        metrics = await engine.update(batch, UNCLIPPED)
        await engine.save(folder / "saved", resumable=False)
        sent = await engine.send(3)
        await engine.stop()
        return metrics, sent

    half, sent = processes.run(step(tmp_path / "half", precision=HALF))
    full, _ = processes.run(step(tmp_path / "full"))
    assert half["loss/policy"] == pytest.approx(full["loss/policy"], abs=0.01)
    assert half["loss/grad_norm"] == pytest.approx(full["loss/grad_norm"], rel=0.02)

    start, saved, expected = (tensors(tmp_path / path) for path in ("half/start", "half/saved", "full/saved"))
    before, received = tensors(reference.path), dict(Disk(tmp_path / "half/weights").receive(version=3))
    assert all(torch.equal(start[key], tensor) for key, tensor in before.items())  # not rounded
    assert all(tensor.dtype == torch.float32 for tensor in saved.values())
    changes = {
        key: torch.cat([(after[key] - tensor).flatten() for key, tensor in sorted(before.items())])
        for key, after in (("half", saved), ("full", expected))
    }
    assert changes["half"].abs().max() <= 1.01 * LR
    assert torch.nn.functional.cosine_similarity(changes["half"], changes["full"], 0) > 0.95

    assert all(
        torch.equal(received[key], tensor if key.endswith(UNTRAINED) else tensor.bfloat16())
        for key, tensor in saved.items()
    )
    assert sent == digest(received.values())


@pytest.mark.parametrize(
    ("kind", "family", "saved", "resumed"),
    [("adamw", "Qwen3", "dp2", "dp2"), ("sgd", "Qwen3", "tp2", "tp2"), ("adamw", "Qwen3-MoE", "tp2 ep2", "pp2 ep2")],
)
def test_a_resumed_trainer_continues_with_its_master_weights(
    kind: str, family: str, saved: str, resumed: str, processes: RankProcesses, tmp_path: Path
) -> None:
    reference, path, batches = Reference(family, tmp_path), tmp_path / "saved", [example(96, seed) for seed in range(3)]

    async def train(name: str, *, first: bool) -> Any:
        optimizer = Optimizer(kind=kind, lr=1e-4 if kind == "adamw" else 0.1)
        engine = processes.trainer(reference.case(layout(name), optimizer=optimizer, precision=HALF))
        await engine.start()
        if first:
            for batch in batches[:2]:
                await engine.update(batch, CLIPPED)
            await engine.save(path)
        else:
            await engine.load(path)
        await engine.save(tmp_path / f"loaded-{first}", resumable=False)
        metrics = await engine.update(batches[2], CLIPPED)
        await engine.save(tmp_path / f"stepped-{first}", resumable=False)
        await engine.stop()
        return metrics

    expected, ours = processes.run(train(saved, first=True)), processes.run(train(resumed, first=False))
    before, after = tensors(tmp_path / "loaded-True"), tensors(tmp_path / "loaded-False")
    assert all(torch.equal(after[key], tensor) for key, tensor in before.items())
    assert any(not torch.equal(tensor, tensor.bfloat16().float()) for tensor in before.values())
    if saved == resumed:
        assert ours == expected
        steps = tensors(tmp_path / "stepped-True"), tensors(tmp_path / "stepped-False")
        assert all(torch.equal(steps[1][key], tensor) for key, tensor in steps[0].items())
    else:
        assert ours["loss/policy"] == pytest.approx(expected["loss/policy"], abs=0.02)
