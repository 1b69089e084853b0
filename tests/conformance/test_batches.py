"""Random batches hold every trap they promise, and their variations change nothing but what they say."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch

from roll.conformance import variations
from roll.conformance.batches import case, tokens
from roll.conformance.exact import exact_batch
from roll.types import Batch

CASES = [case(seed) for seed in range(60)]


def siblings(batch: Batch) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    for group, reward in zip(batch.group.tolist(), batch.rewards.tolist(), strict=True):
        found.setdefault(group, []).append(reward)
    return found


def test_a_seed_gives_the_same_batch_always() -> None:
    case.cache_clear()
    again = case(5).batch
    assert torch.equal(again.ids, CASES[5].batch.ids) and torch.equal(again.rewards, CASES[5].batch.rewards)


def test_batches_have_1_to_64_rows_and_as_many_small_ones_as_large_ones() -> None:
    sizes = [len(given.batch.lengths) for given in CASES]
    assert min(sizes) == 1 and max(sizes) > 50
    assert 20 < sum(size <= 8 for size in sizes) < 40


def test_every_trap_is_there() -> None:
    batches = [exact_batch(given.batch) for given in CASES]
    assert any(0 in batch.lengths for batch in batches), "empty rows"
    rows = [pair for batch in batches for pair in zip(batch.lengths, batch.row_places, strict=True)]
    assert any(length and not places for length, places in rows), "all-masked rows"
    assert any(max(Counter(batch.trajectory.tolist()).values()) == 3 for batch in batches), "three rows a trajectory"
    sizes = {len(rewards) for given in CASES for rewards in siblings(given.batch).values()}
    assert sizes >= {1, 2, 3, 5, 8}
    equal = [r for given in CASES for r in siblings(given.batch).values() if len(r) > 2 and len(set(r)) == 1]
    assert len(equal) > 10, "groups with equal rewards"
    assert any(batch.penalties is None for batch in batches) and any(batch.penalties is not None for batch in batches)
    spoken = [
        turn for batch in batches for turn in set(range(len(batch.turn_rewards))) - set(batch.turn[batch.trained])
    ]
    assert len(spoken) > 50, "turns without a trained token"


def test_siblings_are_neither_neighbours_nor_named_in_order() -> None:
    ids = CASES[4].batch.group.tolist()
    assert ids != sorted(ids) and len(set(ids)) < max(ids)
    assert any(left != right for left, right in pairwise(ids) if ids.count(left) > 1)


def test_rewards_are_what_turns_earned_less_penalties_to_the_last_bit() -> None:
    for given in CASES:
        batch = exact_batch(given.batch)
        for owner, (turns, places) in enumerate(zip(batch.turns, batch.places, strict=True)):
            fines = 0.0 if batch.penalties is None else float(batch.penalties[places].sum())
            assert batch.turn_rewards[turns].sum() - fines == batch.rewards[owner]


def test_half_precision_cannot_hold_the_rewards() -> None:
    rewards = torch.cat([given.batch.rewards for given in CASES])
    assert (rewards.bfloat16().float() != rewards).float().mean() > 0.8


def test_untrained_tokens_hold_garbage_and_rows_begin_untrained() -> None:
    batch = CASES[4].batch
    assert batch.advantages is not None and batch.values is not None
    for row in (batch.advantages, batch.values, batch.sampler_logprobs, CASES[4].logprobs):
        assert torch.isnan(row[~batch.trained]).any() and torch.isfinite(row[batch.trained]).all()
    starts = np.cumsum([0, *batch.lengths[:-1]])[np.array(batch.lengths) > 0]
    assert not batch.trained[starts].any()


def test_turns_grow_along_a_trajectory_and_belong_to_it() -> None:
    for given in CASES:
        batch = given.batch
        row = torch.repeat_interleave(torch.arange(len(batch.lengths)), torch.tensor(batch.lengths))
        assert torch.equal(batch.turn_trajectory[batch.turn], batch.trajectory[row])
        assert (batch.turn.diff() >= 0).all()


def test_tokens_of_some_rows_count_them_from_zero() -> None:
    given = CASES[4]
    rows = [row for row, length in enumerate(given.batch.lengths) if length][:3]
    seen = tokens(given, rows)
    assert seen.row.unique().tolist() == [0, 1, 2]
    assert len(seen.row) == sum(given.batch.lengths[row] for row in rows)
    assert seen.logprobs.requires_grad


@pytest.mark.parametrize(
    "vary",
    [
        variations.shuffled,
        variations.observed,
        variations.trailed,
        variations.masked,
        variations.cut,
        variations.renamed,
        variations.soiled,
    ],
)
def test_a_variation_keeps_every_trained_token_once_with_all_that_is_known_of_it(vary: object) -> None:
    assert callable(vary)
    for given in CASES[:20]:
        varied, before = vary(given)
        batch, old = varied.batch, given.batch
        kept = batch.trained.numpy()
        assert sorted(before[kept].tolist()) == np.flatnonzero(old.trained.numpy()).tolist()
        assert batch.num_tokens == len(before) == len(batch.turn)
        assert torch.equal(batch.ids[kept], old.ids[before[kept]])
        assert torch.equal(varied.logprobs[kept], given.logprobs[before[kept]])
        assert torch.equal(batch.turn_rewards[batch.turn][kept], old.turn_rewards[old.turn][before[kept]])
        owner, was = (torch.repeat_interleave(b.trajectory, torch.tensor(b.lengths)) for b in (batch, old))
        assert torch.equal(batch.rewards[owner][kept], old.rewards[was][before[kept]])
        assert torch.equal(batch.turn_trajectory[batch.turn], owner)
        assert (batch.turn.diff() >= 0).all() and (batch.trajectory.diff() >= 0).all()


def test_variations_do_change_what_they_say() -> None:
    given = CASES[4]
    assert variations.shuffled(given)[0].batch.rewards.tolist() != given.batch.rewards.tolist()
    assert variations.observed(given)[0].batch.num_tokens > given.batch.num_tokens + len(given.batch.lengths)
    assert variations.masked(given)[0].batch.lengths.count(0) > given.batch.lengths.count(0)
    assert len(variations.cut(given)[0].batch.lengths) > len(given.batch.lengths)
    assert variations.renamed(given)[0].batch.group.tolist() != given.batch.group.tolist()
    shifted = variations.rescaled(given, factor=2.0, shift=1.0).batch
    assert torch.equal(shifted.rewards, given.batch.rewards * 2 + 1)
    assert shifted.turn_rewards.sum() == pytest.approx(float(given.batch.turn_rewards.sum() * 2) + len(shifted.rewards))
