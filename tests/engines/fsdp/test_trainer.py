"""The FSDP trainer on many ranks against one process: the same gradients, logprobs, metrics, digests, checkpoints."""

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
from roll.data.packing import pack
from roll.engines.fsdp.logprob_model import dealt
from roll.engines.native.decoder import Decoder
from roll.engines.native.mixed import Reading
from roll.types import Batch, Call, Sampling
from roll.weights.digest import digest
from roll.weights.gloo import gloo
from roll.weights.huggingface import read_tensors
from roll.weights.plan import Plan
from tests.engines import contract
from tests.engines.fsdp_team import SGD, Team, Wanted, alone, written
from tests.engines.models import batch_of, config, prompts, small, twin

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("fsdp")]

CLIPPED = Objective(loss=Call("clipped"))
ROWS = prompts(11, shortest=2, longest=40, seed=3)
PLAN = Plan(names=())
WHOLE_KIT = os.environ.get("ROLL_WHOLE_KIT") == "1"
"""Every objective of the conformance kit for every way to spread a model, which takes minutes; else one for each."""


def batch(rows: list[list[int]] = ROWS, **changes: Any) -> Batch:
    """With advantages and old logprobs that make tokens differ."""
    plain = batch_of(rows)
    noise = torch.Generator().manual_seed(5)
    numbers = torch.randn(3, plain.num_tokens, generator=noise)
    given = {"advantages": numbers[0], "sampler_logprobs": numbers[1] - 3, "old_logprobs": numbers[2] * 0.1 - 3}
    return replace(plain, **{**given, **changes})


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


SPREADS: dict[str, dict[str, int]] = {
    "dp2": {"size": 2},
    "tp2": {"size": 2, "tp": 2},
    "cp2": {"size": 2, "cp": 2},
    "dp2 tp2": {"size": 4, "tp": 2},
}
MODELS: dict[str, dict[str, Any]] = {
    "qwen3": {},
    "llama": {"architecture": "llama", "tie_word_embeddings": False, "attention_bias": True},
}


@pytest.mark.parametrize(
    ("spread", "model"), [*((spread, "qwen3") for spread in SPREADS), ("cp2", "llama"), ("dp2 tp2", "llama")]
)
def test_the_gradient_is_that_of_one_process(spread: str, model: str, team: Team, tmp_path: Path) -> None:
    decoder = _with_biases(small(**MODELS[model]))
    wanted = Wanted(path=written(decoder, tmp_path / "model"), optimizer=SGD, budget=90, **SPREADS[spread])
    check_same_gradient(team, wanted, decoder, batch(), CLIPPED)


def check_same_gradient(team: Team, wanted: Wanted, decoder: Decoder, given: Batch, objective: Objective) -> None:
    """Of one update with SGD at rate 1, which moves weights by exactly the gradient."""
    folder = wanted.path.parent
    before = torch.cat([tensor.detach().flatten() for _, tensor in sorted(decoder.named_tensors())])
    one = team.run(weights_after(alone(wanted, decoder), folder / "one", given, objective=objective))
    many = team.run(weights_after(team.trainer(wanted), folder / "many", given, objective=objective))
    assert (before - one).norm() > 0.01
    assert apart(before - many, before - one) < 1e-5


def _with_biases(decoder: Decoder) -> Decoder:
    """With no norm one and no bias zero: a wrong one of those would hide."""
    noise = torch.Generator().manual_seed(1)
    for parameter in decoder.parameters():
        if parameter.ndim == 1 or parameter.shape[0] == 2:
            parameter.data += 0.1 * torch.randn(parameter.shape, generator=noise)
    return decoder


@pytest.mark.parametrize("spread", SPREADS if WHOLE_KIT else ["dp2", "cp2", "dp2 tp2"])
def test_ranks_pass_the_conformance_kit(spread: str, team: Team, tmp_path: Path) -> None:
    path = written(small(), tmp_path / "model")

    def make(budget: int) -> Any:
        return team.trainer(Wanted(path=path, optimizer=SGD, budget=budget, **SPREADS[spread]))

    one = OBJECTIVES[1:2] if spread == "dp2" else OBJECTIVES[2:3]
    assert team.run(check_trainer(make, vocab=40, objectives=OBJECTIVES if WHOLE_KIT else one)) == []


@pytest.mark.parametrize("spread", ["cp2", "dp2 tp2"])
def test_the_gradient_of_a_critic_is_that_of_one_process(spread: str, team: Team, tmp_path: Path) -> None:
    scored = Decoder(config(), scored=True)
    scored.initialise(0)
    assert scored.score is not None
    scored.score.data.normal_(0, 0.3, generator=torch.Generator().manual_seed(0))
    wanted = Wanted(path=written(scored, tmp_path / "model"), optimizer=SGD, head="score", **SPREADS[spread])
    given = batch(values=torch.zeros(batch().num_tokens), returns=batch().advantages)
    check_same_gradient(team, wanted, scored, given, Objective(loss=Call("squared_value")))


@pytest.mark.parametrize(("spread", "num"), [("dp2", 10), ("dp2 tp2", 4)])
def test_batches_of_a_run_give_the_numbers_of_one_process(spread: str, num: int, team: Team, tmp_path: Path) -> None:
    """Clipped gradients, AdamW, weight decay, a schedule, two objectives, a batch with fewer rows than ranks."""
    knobs = Optimizer(lr=3e-3, weight_decay=0.1, clip_norm=0.5, schedule="cosine", warmup_steps=3)
    decoder = small()
    wanted = Wanted(path=written(decoder, tmp_path / "model"), optimizer=knobs, budget=64, **SPREADS[spread])
    batches = [batch(prompts(1 + 2 * seed, shortest=2, longest=30, seed=seed)) for seed in range(num)]
    objectives = [replace(CLIPPED, entropy=0.01 * (number % 2)) for number in range(num)]

    async def replay(engine: Any) -> list[Any]:
        await engine.start()
        found: list[Any] = []
        for each, objective in zip(batches, objectives, strict=True):
            found.append((await engine.update(each, objective), await engine.logprobs(each)))
        await engine.stop()
        return found

    for one, many in zip(team.run(replay(alone(wanted, decoder))), team.run(replay(team.trainer(wanted))), strict=True):
        assert one[0].keys() == many[0].keys()
        assert many[0] == pytest.approx(one[0], rel=1e-4, abs=1e-5)
        torch.testing.assert_close(many[1], one[1], rtol=1e-4, atol=1e-4)


def test_domains_sampled_in_their_own_ways_are_scored_in_theirs(team: Team, tmp_path: Path) -> None:
    decoder = small()
    kinds = {"hot": Sampling(temperature=2.0), "narrow": Sampling(top_k=3)}
    wanted = Wanted(path=written(decoder, tmp_path / "model"), sampling_of=kinds, budget=50)
    given = batch(domains=("hot", "narrow", "other", *("hot",) * 8))

    async def found(engine: Any) -> torch.Tensor:
        await engine.start()
        logprobs = await engine.logprobs(given)
        await engine.update(given, CLIPPED)
        await engine.stop()
        return logprobs

    one, two = team.run(found(alone(wanted, twin(decoder)))), team.run(found(team.trainer(wanted)))
    torch.testing.assert_close(two, one, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "promise",
    [contract.logprobs_are_about_their_own_token, contract.an_update_that_is_not_finite_changes_nothing],
)
def test_two_ranks_keep_the_contract(promise: Any, team: Team, tmp_path: Path) -> None:
    team.run(promise(team.trainer(Wanted(path=written(small(), tmp_path / "model")))))


def test_two_ranks_give_room_and_take_it_back(team: Team, tmp_path: Path) -> None:
    wanted = Wanted(path=written(small(), tmp_path / "model"))
    engine = team.trainer(wanted)
    team.run(contract.updates_are_the_same_after_offload_and_onload(engine, team.trainer(wanted), engine))


@pytest.mark.parametrize(
    ("saved", "loaded"),
    [("dp2", "one"), ("dp2", "dp4"), ("one", "dp2"), ("dp2 tp2", "cp2")],
)
def test_a_checkpoint_goes_on_in_another_number_of_ranks(saved: str, loaded: str, team: Team, tmp_path: Path) -> None:
    spreads = {**SPREADS, "one": {"size": 1}, "dp4": {"size": 4}}
    wanted = Wanted(path=written(small(), tmp_path / "model"))
    first, second = (replace(wanted, **spreads[name]) for name in (saved, loaded))

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


@pytest.mark.parametrize("spread", ["dp2", "dp2 tp2"])
def test_what_is_sent_is_what_one_process_would_send(spread: str, team: Team, tmp_path: Path) -> None:
    decoder = _with_biases(small(**MODELS["llama"]))
    channel = Call("disk", {"directory": str(tmp_path / "weights")})
    wanted = Wanted(path=written(decoder, tmp_path / "model"), channel=channel, **SPREADS[spread])

    async def send() -> Any:
        engine = team.trainer(wanted)
        await engine.start()
        sent = await engine.send(PLAN, 7)
        await engine.stop()
        return sent

    assert team.run(send()) == digest(decoder.parameters())
    (file,) = (tmp_path / "weights").iterdir()
    assert file.name == "version-7.safetensors"
    received = twin(decoder)
    received.initialise(9)
    received.load(read_tensors(tmp_path / "weights"), where="weights")
    for name, tensor in received.named_tensors():
        assert torch.equal(tensor, dict(decoder.named_tensors())[name]), name


def test_weights_go_out_over_gloo_beside_the_ranks_own_group(team: Team, tmp_path: Path) -> None:
    decoder, given = small(), {"url": f"file://{tmp_path / 'meeting'}", "num_receivers": 1}
    wanted = Wanted(path=written(decoder, tmp_path / "model"), channel=Call("gloo", {**given, "sends": True}))
    received = small(seed=4)

    def receive() -> None:
        received.load(gloo(0, **given).receive(version=1), where="gloo")

    async def send() -> Any:
        engine = team.trainer(wanted)
        await engine.start()
        sent, _ = await asyncio.gather(engine.send(PLAN, 1), asyncio.to_thread(receive))
        await engine.stop()
        return sent

    assert team.run(send()) == digest(received.parameters()) == digest(decoder.parameters())


def test_every_rank_holds_its_part_alone_and_the_true_rotations(team: Team, tmp_path: Path) -> None:
    """Memory that is given after sharding holds garbage, and weights that were broadcast do not mend a rotation."""
    decoder = small()
    engine = team.trainer(Wanted(path=written(decoder, tmp_path / "model"), size=4))

    async def look() -> tuple[list[Any], list[Any]]:
        await engine.start()
        found = await engine.look("local_sizes"), await engine.look("rotations")
        await engine.stop()
        return found

    sizes, rotations = team.run(look())
    for name, tensor in decoder.named_tensors():
        assert sum(each[name] for each in sizes) == tensor.numel(), name
        assert max(each[name] for each in sizes) * 4 == tensor.numel(), name
    for cos, sin in rotations:
        assert torch.equal(cos, decoder.cos) and torch.equal(sin, decoder.sin)


@pytest.mark.parametrize(
    ("spread", "traded"),
    [
        ("cp2", {"reading": Reading(checkpointing=True)}),
        ("dp2 tp2", {"reading": Reading(checkpointing=True)}),
        ("dp2", {"offload": True}),
    ],
    ids=["checkpointing cp2", "checkpointing dp2 tp2", "offload"],
)
def test_what_is_traded_for_memory_changes_no_number(
    spread: str, traded: dict[str, Any], team: Team, tmp_path: Path
) -> None:
    wanted = Wanted(path=written(small(), tmp_path / "model"), **SPREADS[spread])
    plain = team.run(weights_after(team.trainer(wanted), tmp_path / "plain", batch(), batch()))
    found = team.run(weights_after(team.trainer(replace(wanted, **traded)), tmp_path / "traded", batch(), batch()))
    assert torch.equal(found, plain)


def test_sixteen_bits_are_for_arithmetic_alone(team: Team, tmp_path: Path) -> None:
    decoder = small()
    wanted = Wanted(path=written(decoder, tmp_path / "model"), reading=Reading(dtype=torch.bfloat16))
    given = batch(prompts(3, shortest=2, longest=5, seed=1))

    async def train() -> Any:
        engine = team.trainer(wanted)
        await engine.start()
        found = await engine.update(given, CLIPPED), await engine.look("dtypes"), await engine.send(PLAN, 0)
        await engine.stop()
        return found

    metrics, dtypes, sent = team.run(train())
    assert dtypes == [{"torch.float32"}] * 2
    assert set(sent.sums) == {"torch.bfloat16"}
    assert metrics["loss/refused"] == 0 and metrics["loss/grad_norm"] > 0


def test_rows_are_dealt_out_once_each_in_equally_many_micro_batches_alike_in_tokens() -> None:
    lengths = [len(row) for row in prompts(50, shortest=2, longest=60, seed=2)]
    for ranks in (1, 2, 3, 8):
        shares = dealt(lengths, 100, ranks)
        rows = sorted(row for share in shares for rows in share for row in rows)
        assert rows == list(range(50))
        assert len({len(share) for share in shares}) == 1
        assert all(sum(lengths[row] for row in rows) <= 100 for share in shares for rows in share)
        tokens = [sum(lengths[row] for rows in share for row in rows) for share in shares]
        assert max(tokens) < 1.25 * min(tokens)
    assert dealt(lengths, 100, 1) == [pack(lengths, 100)]
    assert [[len(rows) for rows in share] for share in dealt([5, 5], 100, 4)] == [[1], [1], [0], [0]]
