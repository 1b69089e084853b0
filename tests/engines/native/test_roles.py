"""The native engine as critic, reference and reward model; entropies and plain SGD."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from roll.algorithms.recipe import Objective
from roll.config.schema import Optimizer
from roll.data.collate import last_rows
from roll.engines.native.attention import Ragged
from roll.engines.native.decoder import Decoder
from roll.engines.native.trainer import LogprobSettings, NativeLogprobModel, NativeTrainer
from roll.errors import ConfigError
from roll.types import Batch, Sampling, Spec
from roll.weights.huggingface import read_tensors
from tests.engines.models import CPU, batch_of, prompts, small, trainer, twin

ROWS = prompts(6, shortest=2, longest=9, seed=5)
VALUE = Objective(loss=Spec("squared_value"))
SGD = Optimizer(kind="sgd", lr=1.0, max_grad_norm=None)


def critic() -> Decoder:
    body, decoder = small(), Decoder(small().config, scored=True)
    tensors = {name: tensor for name, tensor in body.named_tensors() if name != "lm_head.weight"}
    noise = torch.Generator().manual_seed(1)
    decoder.load([*tensors.items(), ("score.weight", torch.randn(1, body.shape.hidden, generator=noise))], where="test")
    return decoder


def scorer(decoder: Decoder) -> NativeLogprobModel:
    return NativeLogprobModel(decoder, LogprobSettings(tokens_per_microbatch=30, sampling=Sampling(), device=CPU))


def after_each(decoder: Decoder, ids: list[int]) -> torch.Tensor:
    """The score of every prefix of one sequence, computed separately."""
    assert decoder.score is not None
    ragged = Ragged([len(ids)], device=CPU)
    hidden = decoder.hidden(torch.tensor(ids), ragged.positions, ragged.attend)
    return (hidden @ decoder.score.t()).squeeze(-1).detach()


def test_a_value_is_that_of_the_state_before_its_token() -> None:
    decoder = critic()
    result = asyncio.run(scorer(decoder).values(batch_of(ROWS)))
    expected = torch.cat([torch.cat([torch.zeros(1), after_each(decoder, row)[:-1]]) for row in ROWS])
    torch.testing.assert_close(result, expected, atol=1e-5, rtol=1e-4)


def test_the_score_of_a_whole_trajectory_is_that_after_its_last_token() -> None:
    decoder = critic()
    whole = last_rows(batch_of(ROWS))
    result = asyncio.run(scorer(decoder).values(whole))[torch.tensor(whole.lengths).cumsum(0) - 1]
    torch.testing.assert_close(
        result, torch.stack([after_each(decoder, row)[-1] for row in ROWS]), atol=1e-5, rtol=1e-4
    )


@pytest.mark.slow
def test_a_critic_learns_the_returns() -> None:
    async def learn() -> list[float]:
        engine: NativeTrainer = trainer(critic(), optimizer=Optimizer(lr=3e-3))
        await engine.start()
        batch = batch_of(ROWS)
        returns = torch.where(batch.trained, batch.ids.float() / 40, 0.0)
        shown = replace(batch, returns=returns, values=await engine.values(batch))
        result = [(await engine.update(shown, VALUE))["loss/value_error"] for _ in range(30)]
        assert torch.isfinite(await engine.values(batch)).all()
        return result

    errors = asyncio.run(learn())
    assert errors[-1] < 0.3 * errors[0]


def test_a_critic_saved_and_loaded_gives_the_same_values(tmp_path: Path) -> None:
    async def through_disk() -> tuple[torch.Tensor, torch.Tensor]:
        engine, other = trainer(critic()), trainer(Decoder(small().config, scored=True))
        await engine.start()
        await other.start()
        await engine.save(tmp_path)
        await other.load(tmp_path)
        return await engine.values(batch_of(ROWS)), await other.values(batch_of(ROWS))

    ours, theirs = asyncio.run(through_disk())
    assert torch.equal(ours, theirs)
    assert "score.weight" in dict(read_tensors(tmp_path))


def test_logprobs_of_a_critic_are_an_error() -> None:
    with pytest.raises(ConfigError, match="no language head"):
        asyncio.run(scorer(critic()).logprobs(batch_of(ROWS)))


def gradient(decoder: Decoder, batch: Batch, objective: Objective) -> dict[str, torch.Tensor]:
    """The gradient: what parameters lose in one step of plain SGD with learning rate 1."""

    async def step() -> None:
        engine = trainer(decoder, optimizer=SGD)
        await engine.start()
        assert (await engine.update(batch, objective))["loss/refused"] == 0

    before = {name: tensor.detach().clone() for name, tensor in decoder.named_tensors()}
    asyncio.run(step())
    return {name: before[name] - tensor.detach() for name, tensor in decoder.named_tensors()}


def test_plain_sgd_moves_the_weights_by_the_gradient_unclipped() -> None:
    decoder, batch = small(), batch_of(ROWS, advantages=None)
    batch = replace(batch, advantages=batch.trained.float() * 100)
    moved = gradient(twin(decoder), batch, Objective(loss=Spec("policy_gradient")))
    loss = -(asyncio.run(_logprobs(decoder, batch)) * 100)[batch.trained].mean()
    loss.backward()
    ours = dict(decoder.named_parameters())["embed"].grad
    assert ours is not None and ours.norm() > 1
    torch.testing.assert_close(moved["model.embed_tokens.weight"], ours, atol=1e-2, rtol=1e-3)


async def _logprobs(decoder: Decoder, batch: Batch) -> torch.Tensor:
    """Entropies with a gradient, row by row from the definition."""
    rows: list[torch.Tensor] = []
    for row in ROWS:
        ragged = Ragged([len(row)], device=CPU)
        logits = decoder.hidden(torch.tensor(row), ragged.positions, ragged.attend) @ decoder.head.t()
        chosen = logits.log_softmax(-1)[:-1].gather(-1, torch.tensor(row[1:]).unsqueeze(-1)).squeeze(-1)
        rows += [torch.zeros(1), chosen]
    return torch.cat(rows)


@pytest.mark.slow
def test_an_entropy_bonus_raises_the_entropy_and_is_off_by_default() -> None:
    async def learn(bonus: float) -> tuple[float, float]:
        engine = trainer(small(), optimizer=Optimizer(lr=1e-2))
        await engine.start()
        batch = batch_of(ROWS)
        batch = replace(batch, advantages=torch.zeros(batch.num_tokens))
        objective = Objective(loss=Spec("policy_gradient"), entropy=bonus)
        result = [await engine.update(batch, objective) for _ in range(10)]
        return result[0]["loss/entropy"], result[-1]["loss/entropy"]

    before, after = asyncio.run(learn(1.0))
    assert after > before + 0.01
    same, still = asyncio.run(learn(0.0))
    assert same == pytest.approx(before) and still == pytest.approx(same)
