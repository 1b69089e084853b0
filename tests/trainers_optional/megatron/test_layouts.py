"""Trainers over Megatron-Core's blocks compared with one process and the model of transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.layout_ranks import RankProcesses
from benchmarks.layouts import BOUND, CLIPPED, LAYOUTS, Reference, example
from roll.algorithms.recipe import Objective
from roll.config.schema import Optimizer
from roll.engines.megatron.ranks import MegatronLayout
from roll.engines.native.mixed import Precision
from roll.types import Spec

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("megatron")]

ADAMW = Optimizer(lr=1e-3)
CASES = [
    ("Llama 3", "dp2", {}),
    ("Qwen2", "tp2", {"tie_word_embeddings": True}),
    ("Qwen3", "tp2 pp2", {"tie_word_embeddings": True}),
    ("Qwen3", "cp2", {}),
    ("Qwen3-MoE", "tp2 ep2", {}),
    ("Qwen3-MoE", "tp2", {"norm_topk_prob": False}),
    ("Mixtral", "pp2 ep2", {}),
    ("DeepSeek-V3", "tp2 pp2", {"q_lora_rank": None}),
    ("DeepSeek-V3", "ep2", {"n_routed_experts": 8, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 4}),
]


def layout(name: str, **changes: int) -> MegatronLayout:
    return MegatronLayout(**{"url": "", **LAYOUTS[name], **changes})


@pytest.mark.parametrize(("family", "name", "changes"), CASES, ids=[f"{case[0]} {case[1]}" for case in CASES])
def test_the_gradient_is_that_of_one_process(
    family: str, name: str, changes: Any, processes: RankProcesses, tmp_path: Path
) -> None:
    reference = Reference(family, tmp_path, **changes)
    assert processes.run(reference.error(processes, layout(name))) < BOUND


@pytest.mark.parametrize(
    ("family", "sizes"),
    [
        ("Qwen3-MoE", {"size": 4, "tp": 2, "cp": 2}),
        ("DeepSeek-V3", {"size": 4, "pp": 2, "cp": 2}),
    ],
    ids=["tp2 cp2", "pp2 cp2"],
)
def test_further_layouts_have_the_same_gradient(
    family: str, sizes: dict[str, int], processes: RankProcesses, tmp_path: Path
) -> None:
    reference = Reference(family, tmp_path, num_key_value_heads=4)
    assert processes.run(reference.error(processes, MegatronLayout(url="", **sizes))) < BOUND


def test_recomputation_changes_no_gradient(processes: RankProcesses, tmp_path: Path) -> None:
    reference = Reference("Qwen3-MoE", tmp_path)
    checkpointing = Precision(checkpointing=True)
    assert processes.run(reference.error(processes, layout("tp2 ep2"), precision=checkpointing)) < BOUND


@pytest.mark.parametrize("vocab", [96, 95])
def test_logprobs_and_entropies_without_the_whole_vocabulary(
    vocab: int, processes: RankProcesses, tmp_path: Path
) -> None:
    """With 95 tokens one rank has a row of padding."""
    reference = Reference("Qwen3", tmp_path, vocab_size=vocab)
    case, batch = reference.case(layout("tp2")), example(vocab)

    async def measure(engine: Any) -> Any:
        await engine.start()
        result = await engine.logprobs_and_entropies(batch)
        metrics = await engine.update(batch, Objective(loss=Spec("sequence_clipped"), entropy=0.1))
        await engine.stop()
        return result, metrics

    rows, metrics = processes.run(measure(processes.trainer(case)))
    expected_rows, expected = processes.run(measure(reference.alone(case)))
    torch.testing.assert_close(rows, expected_rows, atol=1e-5, rtol=1e-5)
    assert metrics == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("family", "name", "changes"),
    [
        ("Qwen3", "tp2 pp2", {"tie_word_embeddings": True}),
        ("Qwen3-MoE", "tp2 ep2", {}),
        ("DeepSeek-V3", "tp2 pp2", {}),
    ],
)
def test_ten_steps_have_the_losses_of_one_process(
    family: str, name: str, changes: Any, processes: RankProcesses, tmp_path: Path
) -> None:
    reference = Reference(family, tmp_path, **changes)
    case = reference.case(layout(name), optimizer=Optimizer(lr=1e-3, weight_decay=0.1, max_grad_norm=0.3))

    async def train(engine: Any) -> list[dict[str, float]]:
        await engine.start()
        steps = [await engine.update(example(96, seed=step), CLIPPED) for step in range(10)]
        await engine.stop()
        return steps

    expected = processes.run(train(reference.alone(case)))
    for ours, alone in zip(processes.run(train(processes.trainer(case))), expected, strict=True):
        assert ours["loss/policy"] == pytest.approx(alone["loss/policy"], abs=1e-4)
        assert ours["loss/grad_norm"] == pytest.approx(alone["loss/grad_norm"], rel=1e-3)
        assert ours.keys() == alone.keys()
        for metric in {"experts/max_load", "experts/balance", "experts/unused"} & ours.keys():
            assert ours[metric] == pytest.approx(alone[metric], rel=1e-2, abs=1e-3)
    assert expected[0]["loss/grad_norm"] > 0.3
