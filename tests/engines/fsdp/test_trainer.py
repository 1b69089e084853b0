"""The FSDP trainer on many ranks compared with one process: gradients, logprobs, metrics, digests, checkpoints."""

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from roll.algorithms.recipe import Objective
from roll.config.schema import Optimizer
from roll.conformance.trainers import OBJECTIVES, check_trainer
from roll.data.collate import pack
from roll.engines.fsdp.logprob_model import assign_rows
from roll.engines.native.decoder import Decoder
from roll.engines.native.mixed import Precision
from roll.types import Batch, Sampling, Spec
from roll.weights.broadcast import gloo
from roll.weights.channel import Disk, Mailbox
from roll.weights.digest import digest
from roll.weights.huggingface import read_tensors
from roll.weights.meeting import open_meeting
from roll.weights.quantization import send_quantised
from tests.engines import contract
from tests.engines.fsdp_team import SGD, Team, TrainerSpec, alone, written
from tests.engines.models import batch_of, config, prompts, small, twin

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("fsdp")]

CLIPPED = Objective(loss=Spec("clipped"))
ROWS = prompts(11, shortest=2, longest=40, seed=3)
WHOLE_KIT = os.environ.get("ROLL_WHOLE_KIT") == "1"
"""Run every objective of the conformance kit for every layout, which takes minutes; otherwise one each."""


def batch(rows: list[list[int]] = ROWS, **changes: Any) -> Batch:
    """A batch whose advantages and old logprobs differ between tokens."""
    plain = batch_of(rows)
    noise = torch.Generator().manual_seed(5)
    numbers = torch.randn(3, plain.num_tokens, generator=noise)
    example = {"advantages": numbers[0], "sampler_logprobs": numbers[1] - 3, "old_logprobs": numbers[2] * 0.1 - 3}
    return replace(plain, **{**example, **changes})


async def weights_after(engine: Any, folder: Path, *batches: Batch, objective: Objective = CLIPPED) -> torch.Tensor:
    """All weights end to end, in the order of their names, after an update on each batch."""
    await engine.start()
    for each in batches:
        await engine.update(each, objective)
    await engine.save(folder, resumable=False)
    await engine.stop()
    tensors = sorted(read_tensors(folder), key=lambda named: named[0])
    return torch.cat([tensor.flatten() for _, tensor in tensors])


def apart(left: torch.Tensor, right: torch.Tensor) -> float:
    return float((left - right).norm() / right.norm())


LAYOUTS: dict[str, dict[str, int]] = {
    "dp2": {"size": 2},
    "tp2": {"size": 2, "tp": 2},
    "cp2": {"size": 2, "cp": 2},
    "dp2 tp2": {"size": 4, "tp": 2},
}
MODELS: dict[str, dict[str, Any]] = {
    "qwen3": {},
    "llama": {"architecture": "llama", "tie_word_embeddings": False, "attention_bias": True},
}


@pytest.mark.sweep(keep=2)
@pytest.mark.parametrize(
    ("layout", "model"), [*((layout, "qwen3") for layout in LAYOUTS), ("cp2", "llama"), ("dp2 tp2", "llama")]
)
def test_the_gradient_is_that_of_one_process(layout: str, model: str, team: Team, tmp_path: Path) -> None:
    decoder = _with_biases(small(**MODELS[model]))
    spec = TrainerSpec(path=written(decoder, tmp_path / "model"), optimizer=SGD, budget=90, **LAYOUTS[layout])
    check_same_gradient(team, spec, decoder, batch(), CLIPPED)


def check_same_gradient(team: Team, spec: TrainerSpec, decoder: Any, example: Batch, objective: Objective) -> None:
    """Compare gradients by one update with SGD at learning rate 1, which moves weights by exactly the gradient."""
    folder = spec.path.parent
    before = torch.cat([tensor.detach().flatten() for _, tensor in sorted(decoder.named_tensors())])
    one = team.run(weights_after(alone(spec, decoder), folder / "one", example, objective=objective))
    many = team.run(weights_after(team.trainer(spec), folder / "many", example, objective=objective))
    assert (before - one).norm() > 0.01
    assert apart(before - many, before - one) < 1e-5


@pytest.mark.sweep
def test_the_norms_of_layers_are_those_of_one_process(team: Team, tmp_path: Path) -> None:
    decoder = _with_biases(small(**MODELS["llama"]))
    optimizer = SGD.model_copy(update={"layer_grad_norms": True})
    spec = TrainerSpec(path=written(decoder, tmp_path / "model"), optimizer=optimizer, budget=90, **LAYOUTS["dp2 tp2"])

    async def norms(engine: Any) -> dict[str, float]:
        await engine.start()
        metrics = await engine.update(batch(), CLIPPED)
        await engine.stop()
        return {name: value for name, value in metrics.items() if "grad_norm" in name}

    one, many = team.run(norms(alone(spec, decoder))), team.run(norms(team.trainer(spec)))
    layers = ("", "/embed", "/head", "/norm", "/layers.0", "/layers.1")
    assert set(one) == {f"loss/grad_norm{layer}" for layer in layers} and many == pytest.approx(one, rel=1e-4)


def _with_biases(decoder: Decoder) -> Decoder:
    """A decoder whose norms are not one and biases not zero, so that a wrong one is detected."""
    noise = torch.Generator().manual_seed(1)
    for parameter in decoder.parameters():
        if parameter.ndim == 1 or parameter.shape[0] == 2:
            parameter.data += 0.1 * torch.randn(parameter.shape, generator=noise)
    return decoder


@pytest.mark.sweep(keep=1)
@pytest.mark.parametrize("layout", LAYOUTS if WHOLE_KIT else ["dp2", "cp2", "dp2 tp2"])
def test_ranks_pass_the_conformance_kit(layout: str, team: Team, tmp_path: Path) -> None:
    path = written(small(), tmp_path / "model")

    def make(budget: int) -> Any:
        return team.trainer(TrainerSpec(path=path, optimizer=SGD, budget=budget, **LAYOUTS[layout]))

    one = OBJECTIVES[1:2] if layout == "dp2" else OBJECTIVES[2:3]
    assert team.run(check_trainer(make, vocab=40, objectives=OBJECTIVES if WHOLE_KIT else one)) == []


@pytest.mark.parametrize("layout", ["cp2", "dp2 tp2"])
def test_the_gradient_of_a_critic_is_that_of_one_process(layout: str, team: Team, tmp_path: Path) -> None:
    scored = Decoder(config(), scored=True)
    scored.initialise(0)
    assert scored.score is not None
    scored.score.data.normal_(0, 0.3, generator=torch.Generator().manual_seed(0))
    spec = TrainerSpec(path=written(scored, tmp_path / "model"), optimizer=SGD, head="score", **LAYOUTS[layout])
    example = batch(values=torch.zeros(batch().num_tokens), returns=batch().advantages)
    check_same_gradient(team, spec, scored, example, Objective(loss=Spec("squared_value")))


@pytest.mark.sweep(keep=1)
@pytest.mark.parametrize(("layout", "num"), [("dp2", 10), ("dp2 tp2", 4)])
def test_batches_of_a_run_give_the_results_of_one_process(layout: str, num: int, team: Team, tmp_path: Path) -> None:
    """Clipped gradients, AdamW, weight decay, a schedule, two objectives, a batch with fewer rows than ranks."""
    knobs = Optimizer(lr=3e-3, weight_decay=0.1, max_grad_norm=0.5, schedule="cosine", warmup_steps=3)
    decoder = small()
    spec = TrainerSpec(path=written(decoder, tmp_path / "model"), optimizer=knobs, budget=64, **LAYOUTS[layout])
    batches = [batch(prompts(1 + 2 * seed, shortest=2, longest=30, seed=seed)) for seed in range(num)]
    objectives = [replace(CLIPPED, entropy=0.01 * (number % 2)) for number in range(num)]

    async def replay(engine: Any) -> list[Any]:
        await engine.start()
        result: list[Any] = []
        for each, objective in zip(batches, objectives, strict=True):
            result.append((await engine.update(each, objective), await engine.logprobs(each)))
        await engine.stop()
        return result

    for one, many in zip(team.run(replay(alone(spec, decoder))), team.run(replay(team.trainer(spec))), strict=True):
        assert one[0].keys() == many[0].keys()
        assert many[0] == pytest.approx(one[0], rel=1e-4, abs=1e-5)
        torch.testing.assert_close(many[1], one[1], rtol=1e-4, atol=1e-4)


def test_domains_are_scored_under_their_own_sampling(team: Team, tmp_path: Path) -> None:
    decoder = small()
    kinds = {"hot": Sampling(temperature=2.0), "narrow": Sampling(top_k=3)}
    spec = TrainerSpec(path=written(decoder, tmp_path / "model"), sampling_of=kinds, budget=50)
    example = batch(domains=("hot", "narrow", "other", *("hot",) * 8))

    async def result(engine: Any) -> torch.Tensor:
        await engine.start()
        logprobs = await engine.logprobs(example)
        await engine.update(example, CLIPPED)
        await engine.stop()
        return logprobs

    one, two = team.run(result(alone(spec, twin(decoder)))), team.run(result(team.trainer(spec)))
    torch.testing.assert_close(two, one, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "promise",
    [contract.logprobs_are_about_their_own_token, contract.an_update_that_is_not_finite_changes_nothing],
)
def test_two_ranks_fulfil_the_contract(promise: Any, team: Team, tmp_path: Path) -> None:
    team.run(promise(team.trainer(TrainerSpec(path=written(small(), tmp_path / "model")))))


def test_two_ranks_offload_and_onload(team: Team, tmp_path: Path) -> None:
    spec = TrainerSpec(path=written(small(), tmp_path / "model"))
    engine = team.trainer(spec)
    team.run(contract.updates_are_the_same_after_offload_and_onload(engine, team.trainer(spec), engine))


@pytest.mark.sweep(keep=1)
@pytest.mark.parametrize(
    ("saved", "loaded"),
    [("dp2", "one"), ("dp2", "dp4"), ("one", "dp2"), ("dp2 tp2", "cp2")],
)
def test_a_checkpoint_resumes_on_another_number_of_ranks(saved: str, loaded: str, team: Team, tmp_path: Path) -> None:
    layouts = {**LAYOUTS, "one": {"size": 1}, "dp4": {"size": 4}}
    spec = TrainerSpec(path=written(small(), tmp_path / "model"))
    first, second = (replace(spec, **layouts[name]) for name in (saved, loaded))

    async def go_on() -> None:
        engine = team.trainer(first)
        await engine.start()
        for _ in range(2):
            await engine.update(batch(), CLIPPED)
        await engine.save(tmp_path / "saved")
        ahead = await engine.update(batch(), CLIPPED), await engine.logprobs(batch())
        await engine.stop()
        other = team.trainer(second)
        await other.start()
        await other.load(tmp_path / "saved")
        caught_up = await other.update(batch(), CLIPPED), await other.logprobs(batch())
        await other.stop()
        assert caught_up[0] == pytest.approx(ahead[0], rel=1e-5, abs=1e-6)
        torch.testing.assert_close(caught_up[1], ahead[1], rtol=1e-5, atol=1e-5)

    team.run(go_on())


@pytest.mark.parametrize("layout", ["dp2", "dp2 tp2"])
def test_sent_weights_equal_those_of_one_process(layout: str, team: Team, tmp_path: Path) -> None:
    decoder = _with_biases(small(**MODELS["llama"]))
    channel = Spec("disk", {"directory": str(tmp_path / "weights")})
    spec = TrainerSpec(path=written(decoder, tmp_path / "model"), channel=channel, **LAYOUTS[layout])

    async def send() -> Any:
        engine = team.trainer(spec)
        await engine.start()
        sent = await engine.send(7)
        await engine.stop()
        return sent

    assert team.run(send()) == digest(decoder.parameters())
    (file,) = (tmp_path / "weights").iterdir()
    assert file.name == "version-7.tensors"
    received = twin(decoder)
    received.initialise(9)
    received.load(Disk(tmp_path / "weights").receive(version=7), where="weights")
    for name, tensor in received.named_tensors():
        assert torch.equal(tensor, dict(decoder.named_tensors())[name]), name


def test_quantised_weights_equal_those_of_one_process(team: Team, tmp_path: Path) -> None:
    decoder = small(**MODELS["llama"])
    channel = Spec("disk", {"directory": str(tmp_path / "weights")})
    spec = TrainerSpec(path=written(decoder, tmp_path / "model"), channel=channel, quantization="fp8")

    async def send() -> Any:
        engine = team.trainer(spec)
        await engine.start()
        sent = await engine.send(7)
        await engine.stop()
        return sent

    sent = team.run(send())
    assert sent == send_quantised(Mailbox(), decoder.named_tensors(), "fp8", version=7)
    assert sent == digest(tensor for _, tensor in Disk(tmp_path / "weights").receive(version=7))


def test_weights_are_sent_over_gloo_in_a_separate_group(team: Team, tmp_path: Path) -> None:
    decoder, example = small(), {"meeting": str(tmp_path / "meeting"), "num_receivers": 1}
    open_meeting(tmp_path / "meeting")
    spec = TrainerSpec(path=written(decoder, tmp_path / "model"), channel=Spec("gloo", {**example, "sends": True}))
    received = small(seed=4)

    def receive() -> None:
        received.load(gloo(0, **example).receive(version=1), where="gloo")

    async def send() -> Any:
        engine = team.trainer(spec)
        await engine.start()
        sent, _ = await asyncio.gather(engine.send(1), asyncio.to_thread(receive))
        await engine.stop()
        return sent

    assert team.run(send()) == digest(received.parameters()) == digest(decoder.parameters())


def test_every_rank_holds_only_its_shard_and_the_right_rotations(team: Team, tmp_path: Path) -> None:
    """Memory allocated after sharding holds garbage, and broadcast weights do not restore rotation tables."""
    decoder = small()
    engine = team.trainer(TrainerSpec(path=written(decoder, tmp_path / "model"), size=4))

    async def look() -> tuple[list[Any], list[Any]]:
        await engine.start()
        result = await engine.look("local_sizes"), await engine.look("rotations")
        await engine.stop()
        return result

    sizes, rotations = team.run(look())
    for name, tensor in decoder.named_tensors():
        assert sum(each[name] for each in sizes) == tensor.numel(), name
        assert max(each[name] for each in sizes) * 4 == tensor.numel(), name
    for cos, sin in rotations:
        assert torch.equal(cos, decoder.cos) and torch.equal(sin, decoder.sin)


@pytest.mark.sweep(keep=1)
@pytest.mark.parametrize(
    ("layout", "traded"),
    [
        ("cp2", {"precision": Precision(checkpointing=True)}),
        ("dp2 tp2", {"precision": Precision(checkpointing=True)}),
        ("dp2", {"offload": True}),
    ],
    ids=["checkpointing cp2", "checkpointing dp2 tp2", "offload"],
)
def test_memory_options_change_no_result(layout: str, traded: dict[str, Any], team: Team, tmp_path: Path) -> None:
    spec = TrainerSpec(path=written(small(), tmp_path / "model"), **LAYOUTS[layout])
    plain = team.run(weights_after(team.trainer(spec), tmp_path / "plain", batch(), batch()))
    result = team.run(weights_after(team.trainer(replace(spec, **traded)), tmp_path / "traded", batch(), batch()))
    assert torch.equal(result, plain)


def test_only_the_computation_is_in_16_bits(team: Team, tmp_path: Path) -> None:
    decoder = small()
    spec = TrainerSpec(path=written(decoder, tmp_path / "model"), precision=Precision(dtype=torch.bfloat16))
    example = batch(prompts(3, shortest=2, longest=5, seed=1))

    async def train() -> Any:
        engine = team.trainer(spec)
        await engine.start()
        result = await engine.update(example, CLIPPED), await engine.look("dtypes"), await engine.send(0)
        await engine.stop()
        return result

    metrics, dtypes, sent = team.run(train())
    assert dtypes == [{"torch.float32"}] * 2
    assert set(sent.sums) == {"torch.bfloat16"}
    assert metrics["loss/refused"] == 0 and metrics["loss/grad_norm"] > 0


def test_each_row_is_assigned_once_in_equally_many_micro_batches_of_similar_size() -> None:
    lengths = [len(row) for row in prompts(50, shortest=2, longest=60, seed=2)]
    for ranks in (1, 2, 3, 8):
        shares = assign_rows(lengths, 100, ranks)
        rows = sorted(row for share in shares for rows in share for row in rows)
        assert rows == list(range(50))
        assert len({len(share) for share in shares}) == 1
        assert all(sum(lengths[row] for row in rows) <= 100 for share in shares for rows in share)
        tokens = [sum(lengths[row] for rows in share for row in rows) for share in shares]
        assert max(tokens) < 1.25 * min(tokens)
    assert assign_rows(lengths, 100, 1) == [pack(lengths, 100)]
    assert [[len(rows) for rows in share] for share in assign_rows([5, 5], 100, 4)] == [[1], [1], [0], [0]]
