"""Models of transformers over several ranks: the results of one process."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.families import family_model
from roll.algorithms.recipe import Objective
from roll.config.lora import Lora
from roll.config.router_losses import RouterLosses
from roll.conformance.trainers import OBJECTIVES, check_trainer
from roll.engines.hf.decoder import HuggingFaceDecoder
from roll.engines.native.mixed import Precision
from roll.engines.native.model_spec import build
from roll.errors import ConfigError
from roll.types import Batch, Spec
from roll.weights.channel import Disk
from roll.weights.digest import digest, published_tensors
from tests.engines.fsdp.test_trainer import CLIPPED, WHOLE_KIT, check_same_gradient, weights_after
from tests.engines.fsdp_team import SGD, Team, TrainerSpec, alone, written
from tests.engines.models import batch_of, prompts

pytestmark = pytest.mark.slow

ROWS = prompts(9, vocab=96, shortest=2, longest=40, seed=4)
some_families = pytest.mark.parametrize("name", ["Gemma 2", "Qwen3-MoE", "DeepSeek-V3", "GPT-OSS"])


def batch() -> Batch:
    """A batch whose advantages and old logprobs differ between tokens."""
    plain = batch_of(ROWS)
    numbers = torch.randn(3, plain.num_tokens, generator=torch.Generator().manual_seed(5))
    example = {"advantages": numbers[0], "sampler_logprobs": numbers[1] - 3, "old_logprobs": numbers[2] * 0.1 - 3}
    return replace(plain, **example)


def begun(name: str, tmp_path: Path, *, shape: Any = None, **changes: Any) -> tuple[TrainerSpec, HuggingFaceDecoder]:
    """A model on disk, and the same model in this process."""
    path = written(HuggingFaceDecoder(family_model(name, **(shape or {}))), tmp_path / "model")
    spec = TrainerSpec(path=path, engine="hf", budget=90, optimizer=SGD, **changes)
    return spec, build(spec.model_spec())


@pytest.mark.sweep(keep=1)
@some_families
def test_the_gradient_is_that_of_one_process(name: str, team: Team, tmp_path: Path) -> None:
    spec, decoder = begun(name, tmp_path)
    check_same_gradient(team, spec, decoder, batch(), CLIPPED)


def test_losses_of_routers_have_the_gradient_of_one_process(team: Team, tmp_path: Path) -> None:
    spec, decoder = begun("Qwen3-MoE", tmp_path, router_losses=RouterLosses(balance=3.0, z=0.3))
    check_same_gradient(team, spec, decoder, batch(), CLIPPED)


def test_the_load_of_experts_is_that_of_one_process(team: Team, tmp_path: Path) -> None:
    spec, decoder = begun("Qwen3-MoE", tmp_path)

    async def load(engine: Any) -> dict[str, float]:
        await engine.start()
        metrics = await engine.update(batch(), CLIPPED)
        await engine.stop()
        return {name: value for name, value in metrics.items() if name.startswith("experts/")}

    expected = asyncio.run(load(alone(spec, decoder)))
    assert expected["experts/max_load"] > 1
    assert team.run(load(team.trainer(spec))) == pytest.approx(expected, rel=1e-5)


def test_the_gradient_with_given_experts_is_that_of_one_process(team: Team, tmp_path: Path) -> None:
    spec, decoder = begun("Qwen3-MoE", tmp_path)
    noise = torch.Generator().manual_seed(6)
    scores = torch.rand(batch().num_tokens, 3, 8, generator=noise)
    replayed = replace(batch(), experts=scores.topk(2).indices.to(torch.int16))
    check_same_gradient(team, spec, decoder, replayed, CLIPPED)
    own, given = (gradient_norm(team, spec, each) for each in (batch(), replayed))
    assert abs(own - given) > 1e-3 * own


def gradient_norm(team: Team, spec: TrainerSpec, example: Batch) -> float:
    async def use() -> float:
        engine = team.trainer(spec)
        await engine.start()
        metrics = await engine.update(example, CLIPPED)
        await engine.stop()
        return metrics["loss/grad_norm"]

    return team.run(use())


@pytest.mark.sweep
def test_the_gradient_of_a_critic_is_that_of_one_process(team: Team, tmp_path: Path) -> None:
    spec, decoder = begun("Gemma 2", tmp_path, head="new score")
    example = replace(batch(), returns=torch.linspace(-1, 1, batch().num_tokens))
    check_same_gradient(team, spec, decoder, example, Objective(loss=Spec("squared_value")))


@pytest.mark.sweep
def test_adapters_of_one_process_and_of_many_are_the_same(team: Team, tmp_path: Path) -> None:
    lora = Lora(rank=3, target_modules=("o_proj",), export="adapter")
    spec, decoder = begun("DeepSeek-V3", tmp_path, lora=lora)
    one = team.run(weights_after(alone(spec, decoder), tmp_path / "one", batch(), batch()))
    many = team.run(weights_after(team.trainer(spec), tmp_path / "many", batch(), batch()))
    assert one.norm() > 0.01 and float((one - many).norm() / one.norm()) < 1e-5


@pytest.mark.sweep(keep=1)
@pytest.mark.parametrize(("name", "shape"), [("Gemma 2", {}), ("Qwen3-MoE", {"num_experts_per_tok": 8})])
def test_two_ranks_pass_the_conformance_kit(name: str, shape: Any, team: Team, tmp_path: Path) -> None:
    """With all experts at work: where a router changes its choice, the objective jumps, and no gradient shows it."""
    spec, _ = begun(name, tmp_path, shape=shape)

    def make(budget: int) -> Any:
        return team.trainer(replace(spec, budget=budget))

    objectives = OBJECTIVES if WHOLE_KIT else OBJECTIVES[1:2]
    assert team.run(check_trainer(make, vocab=96, objectives=objectives)) == []


@pytest.mark.sweep(keep=1)
@some_families
def test_sent_and_saved_weights_are_those_of_one_process(name: str, team: Team, tmp_path: Path) -> None:
    spec, decoder = begun(name, tmp_path)
    spec = replace(spec, channel=Spec("disk", {"directory": str(tmp_path / "weights")}))

    async def use() -> Any:
        engine = team.trainer(spec)
        await engine.start()
        sent = await engine.send(7)
        await engine.update(batch(), CLIPPED)
        await engine.save(tmp_path / "saved")
        ahead = await engine.update(batch(), CLIPPED), await engine.logprobs(batch())
        await engine.load(tmp_path / "saved")
        caught_up = await engine.update(batch(), CLIPPED), await engine.logprobs(batch())
        await engine.stop()
        assert caught_up[0] == pytest.approx(ahead[0], rel=1e-5, abs=1e-6)
        assert torch.equal(caught_up[1], ahead[1])
        return sent

    assert team.run(use()) == digest(tensor for _, tensor in published_tensors(decoder))
    received, expected = dict(Disk(tmp_path / "weights").receive(version=7)), dict(decoder.named_tensors())
    assert received.keys() == expected.keys()
    assert all(torch.equal(received[key], expected[key]) for key in expected)


@pytest.mark.sweep
def test_sixteen_bits_and_recomputation_stay_close(team: Team, tmp_path: Path) -> None:
    spec, _ = begun("Gemma 3", tmp_path)

    async def logprobs(precision: Precision) -> torch.Tensor:
        engine = team.trainer(replace(spec, precision=precision))
        await engine.start()
        await engine.update(batch(), CLIPPED)
        result = await engine.logprobs(batch())
        await engine.stop()
        return result

    exact, recomputed, narrow = (
        team.run(logprobs(each))
        for each in (
            Precision(),
            Precision(checkpointing=True),
            Precision(dtype=torch.bfloat16, checkpointing=True),
        )
    )
    torch.testing.assert_close(recomputed, exact, rtol=1e-5, atol=1e-5)
    assert 0 < (narrow - exact).abs().mean() < 0.3


def test_tensor_parallelism_is_refused(team: Team, tmp_path: Path) -> None:
    spec, _ = begun("Gemma 2", tmp_path)
    with pytest.raises(ConfigError, match="have neither tp nor cp"):
        team.run(team.trainer(replace(spec, tp=2)).start())
