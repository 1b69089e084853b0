"""The native trainer: gradients that no split changes, skipped updates, and the inputs of a loss."""

import asyncio
import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from roll.algorithms.credit import AlgorithmState, assign_credit, with_loss_weights
from roll.algorithms.losses import Loss
from roll.algorithms.recipe import Objective, Recipe
from roll.config.schema import Optimizer
from roll.engines.native.attention import Ragged, sharing
from roll.engines.native.decoder import Decoder
from roll.types import Batch, Sampling, Spec, Tokens
from tests.engines.models import batch_of, prompts, small, trainer, twin

ROWS = prompts(12, shortest=2, longest=40, seed=3)
STILL = Optimizer(lr=1e-12, max_grad_norm=1e9)
"""Steps too small to change fp32 weights, without clipping."""
SEEN: list[Tokens] = []

CLIPPED = Objective(loss=Spec("clipped"))


def rewarded(rows: list[list[int]] = ROWS, **changes: Any) -> Batch:
    """A batch with advantages and weights as in a run: three rows per group."""
    batch = batch_of(
        rows,
        rewards=torch.tensor([float(sum(row) % 5) for row in rows]),
        group=torch.arange(len(rows)) // 3,
        advantages=None,
        weights=None,
    )
    aggregation = Spec("sequence_mean_token_mean")
    recipe = Recipe(advantage=Spec("group_normalised"), loss=Spec("clipped"), aggregation=aggregation)
    credited, _, _ = assign_credit(batch, recipe, AlgorithmState())
    return replace(with_loss_weights(credited, aggregation), **changes)


def peek(tokens: Tokens) -> Loss:
    """A loss that only records its inputs."""
    SEEN.append(tokens)
    ratio = (tokens.logprobs - tokens.old_logprobs).exp()
    return -ratio * tokens.advantages, {"ratio": ratio.detach()}


async def gradient(decoder: Decoder, batch: Batch, *, budget: int = 4096) -> torch.Tensor:
    """All gradients of one update, end to end, from AdamW's first moment."""
    engine = trainer(decoder, optimizer=STILL, budget=budget)
    await engine.start()
    await engine.update(batch, CLIPPED)
    states = [engine._optimizer.state[parameter]["exp_avg"] for parameter in decoder.parameters()]
    return torch.cat([state.flatten() for state in states]) * 10  # one step with beta 0.9 leaves a tenth


def apart(left: torch.Tensor, right: torch.Tensor) -> float:
    return float((left - right).norm() / right.norm())


@pytest.mark.slow
def test_the_gradient_depends_on_no_micro_batch_budget() -> None:
    decoder = small()
    whole = asyncio.run(gradient(decoder, rewarded()))
    assert whole.norm() > 0.01
    for budget in (41, 64, 100, 333):
        assert apart(asyncio.run(gradient(decoder, rewarded(), budget=budget)), whole) < 1e-5


def test_the_gradient_depends_on_no_row_order() -> None:
    decoder, batch = small(), rewarded()
    whole = asyncio.run(gradient(decoder, batch))
    order = torch.randperm(len(ROWS), generator=torch.Generator().manual_seed(1)).tolist()
    assert apart(asyncio.run(gradient(decoder, batch.select(order), budget=80)), whole) < 1e-5


@pytest.mark.slow
def test_the_gradient_is_that_of_the_formula() -> None:
    decoder, batch = small(), rewarded()
    plain = twin(decoder)
    assert batch.weights is not None and batch.advantages is not None
    start = 0
    for row in ROWS:
        at = slice(start, start + len(row))
        start += len(row)
        loss = -(_logprobs(plain, row) * batch.advantages[at] * batch.weights[at]).sum()
        loss.backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in plain.parameters() if parameter.grad is not None])
    assert apart(asyncio.run(gradient(decoder, batch, budget=64)), expected) < 1e-5


def test_shards_of_a_batch_add_up_to_its_gradient() -> None:
    # Denominators are the whole batch's, so two halves trained apart need no further division.
    decoder, batch = small(), rewarded()
    whole = asyncio.run(gradient(decoder, batch))
    halves = [asyncio.run(gradient(decoder, batch.select(rows))) for rows in (range(0, 5), range(5, 12))]
    assert apart(halves[0] + halves[1], whole) < 1e-5


def test_nan_at_untrained_tokens_does_not_leak() -> None:
    decoder, batch = small(), rewarded()
    expected = asyncio.run(gradient(decoder, batch))
    assert batch.advantages is not None
    poisoned = replace(
        batch,
        advantages=batch.advantages.masked_fill(~batch.trained, torch.nan),
        sampler_logprobs=batch.sampler_logprobs.masked_fill(~batch.trained, torch.nan),
    )
    assert torch.equal(asyncio.run(gradient(decoder, poisoned)), expected)


def test_without_old_logprobs_the_ratio_is_exactly_one() -> None:
    async def update() -> dict[str, float]:
        engine = trainer(small())
        await engine.start()
        return await engine.update(rewarded(), Objective(loss=Spec(f"{__name__}:peek")))

    SEEN.clear()
    result = asyncio.run(update())
    assert result["loss/ratio"] == 1.0
    for tokens in SEEN:
        assert torch.equal(tokens.old_logprobs, tokens.logprobs.detach()) and not tokens.old_logprobs.requires_grad


def test_a_loss_sees_whole_sequences_with_their_owners() -> None:
    async def update() -> None:
        engine = trainer(small(), budget=60)
        await engine.start()
        await engine.update(rewarded(), Objective(loss=Spec(f"{__name__}:peek")))

    SEEN.clear()
    asyncio.run(update())
    assert len(SEEN) > 1
    num_tokens = {at: len(row) for at, row in enumerate(ROWS)}
    for tokens in SEEN:
        for row in tokens.row.unique().tolist():
            (owner,) = tokens.trajectory[tokens.row == row].unique().tolist()
            assert int((tokens.row == row).sum()) == num_tokens.pop(owner)
    assert num_tokens == {}


def test_old_logprobs_of_the_batch_are_used() -> None:
    async def ratio(shift: float) -> float:
        engine = trainer(small(), optimizer=STILL)
        await engine.start()
        batch = rewarded()
        old = await engine.logprobs(batch) - shift
        return (await engine.update(replace(batch, old_logprobs=old), CLIPPED))["loss/ratio"]

    assert asyncio.run(ratio(0.0)) == pytest.approx(1.0, abs=1e-5)
    assert asyncio.run(ratio(0.1)) == pytest.approx(math.exp(0.1), abs=1e-4)


def test_the_sampler_mismatch_is_that_before_the_first_update() -> None:
    async def gap() -> float:
        engine = trainer(small(), optimizer=STILL)
        await engine.start()
        batch = rewarded()
        row = torch.where(batch.trained, -1.0, 0.0)  # far from what the model says now
        return (await engine.update(replace(batch, old_logprobs=row, sampler_logprobs=row * 1.25), CLIPPED))[
            "sampler_mismatch/max"
        ]

    assert asyncio.run(gap()) == pytest.approx(0.25)


def test_metrics_are_means_over_trained_tokens_for_any_split() -> None:
    async def metrics(budget: int) -> dict[str, float]:
        engine = trainer(small(), budget=budget)
        await engine.start()
        batch = rewarded()
        exact = await engine.logprobs(batch)
        off = torch.where(batch.trained, exact - 0.5, exact)
        off[1] -= 1.5  # the second token of the first row: trained
        return await engine.update(replace(batch, sampler_logprobs=off), CLIPPED)

    whole, cut = asyncio.run(metrics(4096)), asyncio.run(metrics(45))
    assert whole == pytest.approx(cut, rel=1e-4, abs=1e-6)
    num_trained = sum(len(row) - 1 for row in ROWS)
    assert cut["sampler_mismatch/max"] == pytest.approx(2.0, abs=1e-4)
    assert cut["sampler_mismatch/mean"] == pytest.approx(0.5 + 1.5 / num_trained, abs=1e-4)
    assert 0 < cut["loss/entropy"] < math.log(40)


def test_a_large_gradient_is_clipped_to_max_grad_norm() -> None:
    decoder = small()

    async def moment(clip_norm: float) -> tuple[float, dict[str, float]]:
        engine = trainer(twin(decoder), optimizer=Optimizer(lr=1e-6, max_grad_norm=clip_norm))
        await engine.start()
        metrics = await engine.update(rewarded(), CLIPPED)
        squares = [state["exp_avg"].square().sum() for state in engine._optimizer.state.values()]
        return float(torch.stack(squares).sum().sqrt()) * 10, metrics

    free, metrics = asyncio.run(moment(1e9))
    assert metrics["loss/grad_norm"] == pytest.approx(free, rel=1e-5)
    short, clipped = asyncio.run(moment(free / 4))
    assert short == pytest.approx(free / 4, rel=1e-4)
    assert clipped["loss/grad_norm"] == pytest.approx(free, rel=1e-5), "the norm reported is the one before clipping"


def test_the_norms_of_layers_are_logged_on_request_and_add_up_to_the_whole() -> None:
    async def measure(optimizer: Optimizer) -> tuple[dict[str, float], dict[str, float]]:
        decoder = small()
        engine = trainer(decoder, optimizer=optimizer)
        await engine.start()
        metrics = await engine.update(rewarded(), CLIPPED)
        moments = {
            name: engine._optimizer.state[parameter]["exp_avg"] * 10 for name, parameter in decoder.named_parameters()
        }
        squares = [float(row.square().sum()) for name, row in moments.items() if name.startswith("layers.1.")]
        by_layer = {name: value for name, value in metrics.items() if name.startswith("loss/grad_norm/")}
        assert sum(value**2 for value in by_layer.values()) in (
            0,
            pytest.approx(metrics["loss/grad_norm"] ** 2, rel=1e-5),
        )
        return by_layer, {"loss/grad_norm/layers.1": sum(squares) ** 0.5}

    found, expected = asyncio.run(measure(Optimizer(lr=1e-6, max_grad_norm=1e9, layer_grad_norms=True)))
    assert set(found) == {f"loss/grad_norm/{layer}" for layer in ("embed", "norm", "layers.0", "layers.1")}
    assert found["loss/grad_norm/layers.1"] == pytest.approx(expected["loss/grad_norm/layers.1"], rel=1e-4)
    assert asyncio.run(measure(Optimizer(lr=1e-6, max_grad_norm=1e9)))[0] == {}


def test_a_skipped_update_neither_advances_the_schedule_nor_leaves_a_gradient() -> None:
    async def rates() -> list[float]:
        decoder = small()
        engine = trainer(decoder, optimizer=Optimizer(lr=1.0, warmup_steps=9))
        await engine.start()
        batch = rewarded()
        assert batch.advantages is not None
        result = [await engine.update(batch, CLIPPED)]
        weights = [parameter.detach().clone() for parameter in decoder.parameters()]
        result.append(await engine.update(replace(batch, advantages=batch.advantages * torch.inf), CLIPPED))
        for before, after in zip(weights, decoder.parameters(), strict=True):
            assert torch.equal(before, after) and after.grad is None
        result.append(await engine.update(batch, CLIPPED))
        assert [metrics["loss/refused"] for metrics in result] == [0, 1, 0]
        return [metrics["loss/lr"] for metrics in result]

    assert asyncio.run(rates()) == pytest.approx([0.1, 0.2, 0.2])


def test_weight_decay_and_the_rate_are_adamws() -> None:
    # The first step of AdamW moves each weight by lr, against its gradient, after shrinking it by lr * decay.
    async def step() -> tuple[Decoder, Decoder]:
        before = small()
        after = twin(before)
        engine = trainer(after, optimizer=Optimizer(lr=0.01, weight_decay=0.5, max_grad_norm=1e9))
        await engine.start()
        await engine.update(rewarded(), CLIPPED)
        return before, after

    before, after = asyncio.run(step())
    moved = (after.norm - before.norm * (1 - 0.01 * 0.5)).abs()
    torch.testing.assert_close(moved, torch.full_like(moved, 0.01), rtol=1e-2, atol=0)


def test_siblings_share_one_prompt_even_if_the_first_row_ends_with_it() -> None:
    prompt = [5, 6, 7, 8]
    rows = [prompt, [*prompt, 9, 10], [*prompt, 11], [5], [*prompt, 9, 12, 13]]
    decoder = small()
    batch = batch_of(rows, prompt=len(prompt))
    with torch.no_grad():
        result = trainer(decoder)._forward(batch, torch.ones_like(batch.trained)).logprobs
        for row, part in zip(rows, result.split(batch.lengths), strict=True):
            torch.testing.assert_close(part, _logprobs(decoder, row), atol=1e-5, rtol=0)


def test_the_last_token_of_a_row_is_not_computed() -> None:
    prompt = [5, 6, 7, 8]
    batch = batch_of([[*prompt, 9, 10], [*prompt, 11], prompt, [5]], prompt=len(prompt))
    ragged = Ragged(batch.lengths, device=torch.device("cpu"), shared=sharing(batch))
    assert batch.ids[ragged.flat_tokens].tolist() == [*prompt, 9, *prompt[:-1], 5]
    assert ragged.flat_index(torch.arange(4, 10)).tolist() == [
        4,
        0,
        0,
        1,
        2,
        3,
    ]  # what is said of token 10 is never read
    assert ragged.longest == 5


def test_each_domain_is_scored_under_the_distribution_it_was_sampled_from() -> None:
    decoder, rows = small(), ROWS[:4]
    sharp = Sampling(temperature=0.5, top_k=3)
    engine = trainer(decoder)
    engine.settings = replace(engine.settings, sampling_of={"sharp": sharp})
    mixed = batch_of(rows, domains=("plain", "sharp", "sharp", "plain"))
    everything = torch.ones_like(mixed.trained)
    with torch.no_grad():
        result = engine._forward(mixed, everything)
        plain = trainer(decoder)._forward(mixed, everything)
        engine.settings = replace(engine.settings, sampling=sharp)
        sharply = engine._forward(replace(mixed, domains=()), everything)
    own = torch.repeat_interleave(torch.tensor([0, 1, 1, 0]), torch.tensor(mixed.lengths)).bool()
    for name in ("logprobs", "entropies"):
        spec = torch.where(own, getattr(sharply, name), getattr(plain, name))
        torch.testing.assert_close(getattr(result, name), spec, atol=1e-6, rtol=0)
    assert not torch.allclose(plain.logprobs, sharply.logprobs)
    engine.settings = replace(engine.settings, sampling=Sampling())
    with torch.no_grad():  # a micro-batch may hold nothing of a domain
        alone = engine._forward(mixed.select([0, 3]), torch.ones(mixed.lengths[0] + mixed.lengths[3], dtype=torch.bool))
    torch.testing.assert_close(alone.logprobs[1 : mixed.lengths[0]], plain.logprobs[1 : mixed.lengths[0]])


def _logprobs(decoder: Decoder, row: list[int]) -> torch.Tensor:
    """Logprobs of one sequence, computed directly."""
    ids, positions = torch.tensor(row), torch.arange(len(row))

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) / q.shape[-1] ** 0.5
        scores = scores.masked_fill(positions[:, None] < positions, -torch.inf)
        return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).flatten(1)

    logits = decoder.hidden(ids, positions, attend) @ decoder.head.T
    scored = logits[:-1].log_softmax(-1).gather(1, ids[1:, None]).squeeze(1)
    return torch.cat([torch.zeros(1), scored])


def test_entropies_are_measured_in_the_pass_of_the_logprobs() -> None:
    rows, decoder = ROWS[:5], small()
    engine = trainer(decoder, budget=64, sampling=Sampling(temperature=0.7))
    batch = batch_of(rows)

    async def measure() -> tuple[torch.Tensor, torch.Tensor]:
        await engine.start()
        return await engine.logprobs(batch), await engine.logprobs_and_entropies(batch)

    logprobs, both = asyncio.run(measure())
    expected: list[float] = []
    for row in rows:
        ragged = Ragged((len(row),), device=torch.device("cpu"))
        with torch.no_grad():
            logits = decoder.hidden(torch.tensor(row), ragged.positions, ragged.attend) @ decoder.head.t()
        shares = (logits / 0.7).double().softmax(-1)
        expected += [0.0, *(-(shares * shares.log()).sum(-1))[:-1].tolist()]  # entry t is about the choice of token t
    assert torch.equal(both[0], logprobs)
    torch.testing.assert_close(both[1].double(), torch.tensor(expected, dtype=torch.float64), rtol=1e-5, atol=1e-5)
