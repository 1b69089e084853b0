"""Random batches contain every difficult feature, and their variations change nothing else."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch

from roll.conformance import variations
from roll.conformance.batches import case, tokens
from roll.conformance.exact import exact_batch
from roll.types import Batch

pytestmark = pytest.mark.slow

CASES = [case(seed) for seed in range(60)]


def siblings(batch: Batch) -> dict[int, list[float]]:
    result: dict[int, list[float]] = {}
    for group, reward in zip(batch.group.tolist(), batch.rewards.tolist(), strict=True):
        result.setdefault(group, []).append(reward)
    return result


def test_a_seed_always_gives_the_same_batch() -> None:
    case.cache_clear()
    again = case(5).batch
    assert torch.equal(again.ids, CASES[5].batch.ids) and torch.equal(again.rewards, CASES[5].batch.rewards)


def test_batches_have_1_to_64_rows_and_small_and_large_ones_are_equally_frequent() -> None:
    sizes = [len(example.batch.lengths) for example in CASES]
    assert min(sizes) == 1 and max(sizes) > 50
    assert 20 < sum(size <= 8 for size in sizes) < 40


def test_every_difficult_feature_occurs() -> None:
    batches = [exact_batch(example.batch) for example in CASES]
    assert any(0 in batch.lengths for batch in batches), "empty rows"
    rows = [pair for batch in batches for pair in zip(batch.lengths, batch.row_positions, strict=True)]
    assert any(length and not places for length, places in rows), "all-masked rows"
    assert any(max(Counter(batch.trajectory.tolist()).values()) == 3 for batch in batches), "three rows a trajectory"
    sizes = {len(rewards) for example in CASES for rewards in siblings(example.batch).values()}
    assert sizes >= {1, 2, 3, 5, 8}
    equal = [r for example in CASES for r in siblings(example.batch).values() if len(r) > 2 and len(set(r)) == 1]
    assert len(equal) > 10, "groups with equal rewards"
    assert any(batch.penalties is None for batch in batches) and any(batch.penalties is not None for batch in batches)
    spoken = [
        turn for batch in batches for turn in set(range(len(batch.turn_rewards))) - set(batch.turn[batch.trained])
    ]
    assert len(spoken) > 50, "turns without a trained token"


def test_siblings_are_neither_adjacent_nor_numbered_in_order() -> None:
    ids = CASES[4].batch.group.tolist()
    assert ids != sorted(ids) and len(set(ids)) < max(ids)
    assert any(left != right for left, right in pairwise(ids) if ids.count(left) > 1)


def test_rewards_are_exactly_turn_rewards_and_spans_minus_penalties() -> None:
    for example in CASES:
        batch = exact_batch(example.batch)
        for owner, (turns, places) in enumerate(zip(batch.turns, batch.positions, strict=True)):
            fines = 0.0 if batch.penalties is None else float(batch.penalties[places].sum())
            spans = 0.0 if batch.span_rewards is None else float(np.nansum(batch.span_rewards[places]))
            assert batch.turn_rewards[turns].sum() + spans - fines == batch.rewards[owner]


def test_half_precision_cannot_hold_the_rewards() -> None:
    rewards = torch.cat([example.batch.rewards for example in CASES])
    assert (rewards.bfloat16().float() != rewards).float().mean() > 0.8


def test_untrained_tokens_hold_garbage_and_rows_begin_untrained() -> None:
    batch = CASES[4].batch
    assert batch.advantages is not None and batch.values is not None
    for row in (batch.advantages, batch.values, batch.sampler_logprobs, CASES[4].logprobs):
        assert torch.isnan(row[~batch.trained]).any() and torch.isfinite(row[batch.trained]).all()
    starts = np.cumsum([0, *batch.lengths[:-1]])[np.array(batch.lengths) > 0]
    assert not batch.trained[starts].any()


def test_turns_grow_along_a_trajectory_and_belong_to_it() -> None:
    for example in CASES:
        batch = example.batch
        row = torch.repeat_interleave(torch.arange(len(batch.lengths)), torch.tensor(batch.lengths))
        assert torch.equal(batch.turn_trajectory[batch.turn], batch.trajectory[row])
        assert (batch.turn.diff() >= 0).all()


def test_tokens_of_selected_rows_number_the_rows_from_zero() -> None:
    example = CASES[4]
    rows = [row for row, length in enumerate(example.batch.lengths) if length][:3]
    seen = tokens(example, rows)
    assert seen.row.unique().tolist() == [0, 1, 2]
    assert len(seen.row) == sum(example.batch.lengths[row] for row in rows)
    assert seen.logprobs.requires_grad


@pytest.mark.parametrize(
    "vary",
    [
        variations.shuffle,
        variations.insert_observations,
        variations.append_observations,
        variations.add_masked_rows,
        variations.divide_rows,
        variations.rename_groups,
        variations.replace_garbage,
    ],
)
def test_a_variation_keeps_every_trained_token_once_with_all_its_values(vary: object) -> None:
    assert callable(vary)
    for example in CASES[:20]:
        varied, before = vary(example)
        batch, old = varied.batch, example.batch
        retained = batch.trained.numpy()
        assert sorted(before[retained].tolist()) == np.flatnonzero(old.trained.numpy()).tolist()
        assert batch.num_tokens == len(before) == len(batch.turn)
        assert torch.equal(batch.ids[retained], old.ids[before[retained]])
        assert torch.equal(varied.logprobs[retained], example.logprobs[before[retained]])
        assert torch.equal(batch.turn_rewards[batch.turn][retained], old.turn_rewards[old.turn][before[retained]])
        owner, was = (torch.repeat_interleave(b.trajectory, torch.tensor(b.lengths)) for b in (batch, old))
        assert torch.equal(batch.rewards[owner][retained], old.rewards[was][before[retained]])
        assert torch.equal(batch.turn_trajectory[batch.turn], owner)
        assert (batch.turn.diff() >= 0).all() and (batch.trajectory.diff() >= 0).all()


def test_variations_change_the_batch() -> None:
    example = CASES[4]
    assert variations.shuffle(example)[0].batch.rewards.tolist() != example.batch.rewards.tolist()
    assert variations.insert_observations(example)[0].batch.num_tokens > example.batch.num_tokens + len(
        example.batch.lengths
    )
    assert variations.add_masked_rows(example)[0].batch.lengths.count(0) > example.batch.lengths.count(0)
    assert len(variations.divide_rows(example)[0].batch.lengths) > len(example.batch.lengths)
    assert variations.rename_groups(example)[0].batch.group.tolist() != example.batch.group.tolist()
    shifted = variations.rescale(example, factor=2.0, shift=1.0).batch
    assert torch.equal(shifted.rewards, example.batch.rewards * 2 + 1)
    assert shifted.turn_rewards.sum() == pytest.approx(
        float(example.batch.turn_rewards.sum() * 2) + len(shifted.rewards)
    )
