"""Critics and frozen models over Megatron-Core's blocks, compared with one process."""

from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.layout_ranks import RankProcesses
from benchmarks.layouts import BOUND, LAYOUTS, SQUARED, Reference, example
from roll.config.schema import Optimizer
from roll.engines.megatron.ranks import MegatronLayout
from roll.errors import ConfigError
from roll.weights.huggingface import read_tensors

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("megatron")]

ADAMW = Optimizer(lr=1e-2)


def layout(name: str) -> MegatronLayout:
    return MegatronLayout(url="", **LAYOUTS[name])


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("Qwen3", "tp2"),
        ("Qwen3", "pp2"),
        ("Llama 3", "cp2"),
        ("Qwen2", "dp2"),
        ("Qwen3-MoE", "tp2 ep2"),
        ("DeepSeek-V3", "tp2 pp2"),
    ],
)
def test_the_gradient_of_a_critic_is_that_of_one_process(
    family: str, name: str, processes: RankProcesses, tmp_path: Path
) -> None:
    reference = Reference(family, tmp_path, scored=True, tie_word_embeddings=True)
    assert processes.run(reference.error(processes, layout(name))) < BOUND
    saved, expected = (dict(read_tensors(tmp_path / folder)) for folder in ("ranks", "alone"))
    assert saved.keys() == expected.keys() and saved["score.weight"].norm() > 0


def test_a_new_critic_starts_with_values_of_zero_and_resumes(processes: RankProcesses, tmp_path: Path) -> None:
    reference, batches, path = (
        Reference("Qwen3", tmp_path),
        [example(96, seed) for seed in range(3)],
        tmp_path / "saved",
    )
    case = reference.case(layout("tp2 pp2"), head="new score", optimizer=ADAMW)

    async def save_and_continue(engine: Any) -> Any:
        await engine.start()
        assert not (await engine.values(batches[0])).any()
        for batch in batches[:2]:
            await engine.update(batch, SQUARED)
        await engine.save(path)
        result = await engine.update(batches[2], SQUARED), await engine.values(batches[2])
        await engine.stop()
        return result

    async def resume() -> Any:
        engine = processes.trainer(reference.case(layout("dp2"), head="new score", optimizer=ADAMW))
        await engine.start()
        await engine.load(path)
        result = await engine.update(batches[2], SQUARED), await engine.values(batches[2])
        await engine.stop()
        return result

    metrics, values = processes.run(save_and_continue(processes.trainer(case)))
    again, values_again = processes.run(resume())
    alone = reference.alone(case)
    expected, expected_values = processes.run(save_and_continue(alone))
    assert metrics.keys() == expected.keys()
    for result, row in ((metrics, values), (again, values_again)):
        assert result == pytest.approx(expected, rel=1e-3, abs=1e-5)
        torch.testing.assert_close(row, expected_values, rtol=1e-3, atol=1e-3)
    assert expected_values.abs().max() > 0.01


@pytest.mark.parametrize(
    ("family", "name"), [("Qwen3", "tp2"), ("Qwen3", "pp2"), ("Qwen3-MoE", "tp2 ep2"), ("DeepSeek-V3", "pp2 ep2")]
)
@pytest.mark.parametrize("scored", [False, True], ids=["reference", "reward model"])
def test_a_frozen_model_returns_the_rows_of_one_process(
    scored: bool, family: str, name: str, processes: RankProcesses, tmp_path: Path
) -> None:
    reference, batch = Reference(family, tmp_path, scored=scored), example(96)
    case = reference.case(layout(name), trains=False)

    async def rows(engine: Any) -> torch.Tensor:
        await engine.start()
        result = await (engine.values(batch) if scored else engine.logprobs(batch))
        await engine.stop()
        return result

    ours, expected = processes.run(rows(processes.trainer(case))), processes.run(rows(reference.alone(case)))
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)
    assert ours.abs().max() > 0.01


def test_a_model_without_the_head_is_refused(processes: RankProcesses, tmp_path: Path) -> None:
    reference = Reference("Qwen3", tmp_path)

    async def ask(head: str, method: str) -> None:
        engine = processes.trainer(reference.case(layout("pp2"), head=head, trains=False))
        try:
            await engine.start()
            await getattr(engine, method)(example(96))
        finally:
            await engine.stop()

    for head, method, expected in (
        ("logits", "values", "no value head"),
        ("new score", "logprobs", "no language head"),
        ("score", "values", "tensor score.weight is missing"),
    ):
        with pytest.raises(ConfigError, match=expected):
            processes.run(ask(head, method))
