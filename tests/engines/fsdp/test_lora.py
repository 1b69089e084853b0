"""Adapters on many ranks, compared with one process."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from roll.algorithms.recipe import Objective
from roll.config.lora import Lora
from roll.conformance.trainers import OBJECTIVES, check_trainer
from roll.engines.native import lora
from roll.engines.native.decoder import Decoder
from roll.engines.native.mixed import Precision
from roll.engines.native.trainer import NativeTrainer
from roll.errors import ConfigError
from roll.types import Batch, Spec
from roll.weights.adapters import write_adapter
from roll.weights.channel import Disk, Shared
from roll.weights.huggingface import read_tensors
from tests.engines.fsdp.test_trainer import WHOLE_KIT
from tests.engines.fsdp_team import SGD, Team, TrainerSpec, alone, written
from tests.engines.models import batch_of, prompts, small

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("fsdp")]

CLIPPED = Objective(loss=Spec("clipped"))
ROWS = prompts(11, shortest=2, longest=40, seed=3)
LORA = Lora(rank=3, alpha=6, export="adapter")


def batch() -> Batch:
    """A batch whose advantages and old logprobs differ between tokens."""
    plain = batch_of(ROWS)
    numbers = torch.randn(3, plain.num_tokens, generator=torch.Generator().manual_seed(5))
    example = {"advantages": numbers[0], "sampler_logprobs": numbers[1] - 3, "old_logprobs": numbers[2] * 0.1 - 3}
    return replace(plain, **example)


def begun(tmp_path: Path, how: Lora = LORA, **changes: Any) -> tuple[TrainerSpec, Decoder]:
    """A model on disk with an adapter that is not zero, and the same model in this process."""
    decoder = lora.attach(small(**changes), how)
    lora.initialise(decoder, 0)
    noise = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, tensor in decoder.adapter_tensors():
            if name.endswith("lora_B.weight"):
                tensor.copy_(torch.randn(tensor.shape, generator=noise) * 0.2)
    write_adapter(tmp_path / "adapter", how, decoder.adapter_tensors(), base=None)
    path = written(decoder, tmp_path / "model")
    lora_spec = how.model_copy(update={"path": str(tmp_path / "adapter")})
    return TrainerSpec(path=path, optimizer=SGD, budget=90, lora=lora_spec), decoder


async def saved(engine: Any, folder: Path, *, updates: int) -> torch.Tensor:
    await engine.start()
    for _ in range(updates):
        await engine.update(batch(), CLIPPED)
    await engine.save(folder, resumable=False)
    await engine.stop()
    return torch.cat([tensor.flatten() for _, tensor in sorted(read_tensors(folder), key=lambda named: named[0])])


@pytest.mark.sweep(keep=1)
@pytest.mark.parametrize(("export", "layout"), [("adapter", {"size": 2}), ("merged", {"size": 2, "cp": 2})])
def test_the_gradient_is_that_of_one_process(layout: Any, export: Any, team: Team, tmp_path: Path) -> None:
    biased = {"architecture": "llama", "attention_bias": True, "tie_word_embeddings": False}
    spec, decoder = begun(tmp_path, LORA.model_copy(update={"export": export}), **biased)
    spec = replace(spec, **layout)
    before = team.run(saved(alone(spec, decoder), tmp_path / "before", updates=0))
    one = team.run(saved(alone(spec, decoder), tmp_path / "one", updates=1))
    many = team.run(saved(team.trainer(spec), tmp_path / "many", updates=1))
    assert (before - one).norm() > 0.01
    assert float(((before - many) - (before - one)).norm() / (before - one).norm()) < 1e-5


@pytest.mark.sweep
@pytest.mark.parametrize("layout", [{"size": 2}, {"size": 2, "cp": 2}] if WHOLE_KIT else [{"size": 2}], ids=str)
def test_two_ranks_with_adapters_pass_the_conformance_kit(layout: Any, team: Team, tmp_path: Path) -> None:
    spec, _ = begun(tmp_path)

    def make(budget: int) -> Any:
        return team.trainer(replace(spec, budget=budget, **layout))

    assert team.run(check_trainer(make, vocab=40, objectives=OBJECTIVES if WHOLE_KIT else OBJECTIVES[1:2])) == []


@pytest.mark.sweep
def test_digest_logprobs_and_reference_are_those_of_one_process(team: Team, tmp_path: Path) -> None:
    channel = Spec("disk", {"directory": str(tmp_path / "weights")})
    spec, decoder = begun(tmp_path)
    spec = replace(spec, channel=channel)

    async def look(engine: Any) -> tuple[Any, ...]:
        await engine.start()
        first = await engine.send(0)
        reference = await engine.base_logprobs(batch())
        await engine.update(batch(), CLIPPED)
        result = await engine.logprobs(batch()), await engine.base_logprobs(batch())
        result = *result, await engine.logprobs_and_entropies(batch())
        await engine.stop()
        return first, reference, *result

    one = team.run(look(NativeTrainer(decoder, spec.settings(), Shared())))
    many = team.run(look(team.trainer(spec)))
    assert one[0] == many[0]
    for left, right in zip(one[1:], many[1:], strict=True):
        torch.testing.assert_close(right, left, rtol=1e-4, atol=1e-4)
    assert torch.equal(many[1], many[3]), "the reference stays"
    assert not torch.allclose(many[1], many[2], atol=1e-3)
    assert all(".lora_" in name for name, _ in Disk(tmp_path / "weights").receive(version=0))


def test_a_checkpoint_of_adapters_resumes_on_another_number_of_ranks(team: Team, tmp_path: Path) -> None:
    spec = replace(begun(tmp_path)[0], optimizer=TrainerSpec(path=tmp_path).optimizer)

    async def go_on() -> None:
        engine = team.trainer(spec)
        await engine.start()
        for _ in range(2):
            await engine.update(batch(), CLIPPED)
        await engine.save(tmp_path / "saved")
        ahead = await engine.update(batch(), CLIPPED), await engine.logprobs(batch())
        await engine.stop()
        other = team.trainer(replace(spec, size=1))
        await other.start()
        await other.load(tmp_path / "saved")
        caught_up = await other.update(batch(), CLIPPED), await other.logprobs(batch())
        await other.stop()
        assert caught_up[0] == pytest.approx(ahead[0], rel=1e-5, abs=1e-6)
        torch.testing.assert_close(caught_up[1], ahead[1], rtol=1e-5, atol=1e-5)

    team.run(go_on())
    assert not (tmp_path / "saved" / "model.safetensors").exists()


@pytest.mark.sweep
def test_in_16_bits_the_frozen_model_is_stored_and_gathered_in_16_bits(team: Team, tmp_path: Path) -> None:
    spec, decoder = begun(tmp_path)
    narrow = replace(spec, precision=Precision(dtype=torch.bfloat16, checkpointing=True))
    rows = batch().select([0, 1, 2])

    async def look(engine: Any) -> tuple[torch.Tensor, Any]:
        await engine.start()
        assert (await engine.update(rows, CLIPPED))["loss/refused"] == 0
        result = await engine.logprobs(rows), await engine.send(1)
        if engine is layout:
            kinds = [dict(each) for each in await engine.look("dtypes_by_name")]
            assert all((".lora_" in name) == (kind == "torch.float32") for each in kinds for name, kind in each.items())
        await engine.stop()
        return result

    layout = team.trainer(narrow)
    many, sent = team.run(look(layout))
    one, _ = team.run(look(alone(spec, decoder)))
    assert float((many - one).abs().mean()) < 0.05
    assert set(sent.sums) == {"torch.bfloat16"}, "what is published is rounded as it is used"


def test_another_rank_is_refused_by_all(team: Team, tmp_path: Path) -> None:
    spec, _ = begun(tmp_path)

    async def go_on() -> None:
        engine = team.trainer(spec)
        await engine.start()
        await engine.save(tmp_path / "saved")
        await engine.stop()
        other = team.trainer(replace(spec, lora=Lora(rank=4, alpha=8)))
        await other.start()
        await other.load(tmp_path / "saved")

    with pytest.raises(ConfigError, match=r"actor_train.lora.rank: the adapter in .* has 3"):
        team.run(go_on())
