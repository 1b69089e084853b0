"""Random ragged batches with every difficult feature; a seed always gives the same batch.

Several rows per trajectory, several turns per row with observations between and after them, empty and all-masked rows,
groups of one, groups with equal rewards, unordered group ids and trajectories, and garbage including NaN at every
untrained token. Rewards need 17 bits, so half precision cannot represent them; sums of them are exact.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from roll.conformance.exact import exact_batch
from roll.conformance.oracle_batches import token_mean
from roll.types import Batch, Tokens

_GARBAGE = (np.nan, np.inf, -np.inf, 1e30, -7.0)
_GRAIN = 2.0**-14


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Case:
    """A batch with advantages and weights, and the current outputs of a policy and a critic on its tokens."""

    seed: int
    batch: Batch
    logprobs: torch.Tensor
    values: torch.Tensor
    entropies: torch.Tensor

    @property
    def rows(self) -> list[int]:
        return list(range(len(self.batch.lengths)))


@dataclass(slots=True, kw_only=True)
class _Turn:
    observed: int
    sampled: int
    """Numbers of tokens of each kind."""
    reward: float
    state: int

    @property
    def num_tokens(self) -> int:
        return self.observed + self.sampled


@dataclass(slots=True, kw_only=True)
class _Attempt:
    group: int
    segments: list[list[_Turn]]
    masked: bool
    """Whether none of its tokens is trained."""


@lru_cache(maxsize=64)
def case(seed: int, *, max_rows: int = 64, vocab: int = 32, long: bool = False) -> Case:
    """A batch of 1 to `max_rows` rows; with `long`, responses have dozens of tokens instead of a few."""
    noise = np.random.default_rng(seed)
    num_rows = int(max_rows ** noise.random() + 0.5)  # small and large batches are equally frequent
    attempts = _attempts(noise, num_rows, most=40 if long else 6)
    trained = _flat(attempts, lambda attempt, turn: [False] * turn.observed + [not attempt.masked] * turn.sampled)
    mask = np.array(trained, np.bool_)
    old = -noise.exponential(1.0, len(mask))
    sampler = old + _drift(noise, len(mask))
    penalties = _penalties(noise, attempts, mask) if noise.random() < 0.5 else None
    spans = _spans(seed, attempts, mask) if seed % 3 == 0 else None
    batch = Batch(
        ids=torch.as_tensor(noise.integers(0, vocab, len(mask))),
        trained=torch.as_tensor(mask),
        sampler_logprobs=_with_garbage(noise, sampler, mask),
        versions=torch.as_tensor(np.where(mask, 3, -1).astype(np.int32)),
        lengths=tuple(sum(turn.num_tokens for turn in turns) for attempt in attempts for turns in attempt.segments),
        trajectory=_ints([owner for owner, attempt in enumerate(attempts) for _ in attempt.segments]),
        group=_ints(_group_ids(noise, attempts)),
        truncated=torch.as_tensor(noise.random(len(attempts)) < 0.3),
        parts={"format": _part(noise, len(attempts))},
        span_rewards=None if spans is None else _with_garbage(np.random.default_rng(seed), spans, mask),
        penalties=None if penalties is None else _with_garbage(noise, penalties, mask),
        old_logprobs=_with_garbage(noise, old, mask),
        ref_logprobs=_with_garbage(noise, old + _drift(noise, len(mask)), mask),
        teacher_logprobs=_with_garbage(noise, old + _drift(noise, len(mask)), mask),
        values=_with_garbage(noise, noise.normal(0, 1, len(mask)), mask),
        returns=_with_garbage(noise, noise.normal(0, 1, len(mask)), mask),
        **_turn_fields(attempts, [None if penalties is None else -penalties, spans], mask),
    )
    return _finish(seed, noise, batch, mask, old)


def tokens(case: Case, rows: list[int] | None = None) -> Tokens:
    """Inputs of a loss for these rows, or all rows if None; `logprobs`, `values` and `entropies` take gradients."""
    rows = case.rows if rows is None else rows
    positions = case.batch.positions(rows)
    batch = case.batch.select(rows)
    lengths = _ints(batch.lengths)
    row = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    assert batch.old_logprobs is not None and batch.advantages is not None
    return Tokens(
        logprobs=case.logprobs[positions].clone().requires_grad_(),
        old_logprobs=batch.old_logprobs,
        sampler_logprobs=batch.sampler_logprobs,
        advantages=batch.advantages,
        trained=batch.trained,
        row=row,
        trajectory=batch.trajectory[row],
        turn=batch.turn,
        ref_logprobs=batch.ref_logprobs,
        teacher_logprobs=batch.teacher_logprobs,
        values=case.values[positions].clone().requires_grad_(),
        old_values=batch.values,
        returns=batch.returns,
        entropies=case.entropies[positions].clone().requires_grad_(),
    )


def _finish(seed: int, noise: np.random.Generator, batch: Batch, mask: Any, old: Any) -> Case:
    """Adds advantages of either sign, zero for some rows, and the weights of the mean over trained tokens."""
    by_row = noise.choice([0.0, 1.0, 1.0, 1.0], len(batch.lengths))
    size = noise.uniform(0.1, 2.0, len(mask)) * noise.choice([-1.0, 1.0], len(mask))
    advantages = size * np.repeat(by_row, batch.lengths)
    entropies = _with_garbage(noise, noise.exponential(1.0, len(mask)), mask)
    whole = {
        "entropies": entropies,
        "advantages": _with_garbage(noise, advantages, mask),
        "weights": torch.as_tensor(token_mean(exact_batch(batch)).astype(np.float32)),
    }
    return Case(
        seed=seed,
        batch=replace(batch, **whole),
        logprobs=_with_garbage(noise, old + _drift(noise, len(mask)), mask),
        values=_with_garbage(noise, noise.normal(0, 1, len(mask)), mask),
        entropies=entropies,
    )


def _attempts(noise: np.random.Generator, num_rows: int, *, most: int) -> list[_Attempt]:
    """Trajectories with `num_rows` rows in all, in random order, so that siblings are not adjacent."""
    attempts: list[_Attempt] = []
    group, left = 0, num_rows
    while left:
        equal = float(np.float32(noise.normal())) if noise.random() < 0.25 else None
        for _ in range(int(noise.choice([1, 2, 3, 5, 8]))):
            size = min(left, int(noise.choice([1, 1, 1, 2, 3])))
            if size:
                attempts.append(_attempt(noise, group, size, equal, most))
                left -= size
        group += 1
    return [attempts[index] for index in noise.permutation(len(attempts))]


def _attempt(noise: np.random.Generator, group: int, size: int, equal: float | None, most: int) -> _Attempt:
    """One trajectory of `size` rows; its rewards sum to `equal` unless that is None."""
    segments = [_segment(noise, most) for _ in range(size)]
    attempt = _Attempt(group=group, segments=segments, masked=bool(noise.random() < 0.1))
    turns = [turn for segment in segments for turn in segment]
    if not turns:  # every attempt has a turn, if only an empty one
        turns = [_Turn(observed=0, sampled=0, reward=0.0, state=0)]
        segments[0].extend(turns)
    for turn in turns[:-1]:
        turn.reward = 0.0 if equal is not None or noise.random() < 0.5 else _grains(noise)
    turns[-1].reward = _grains(noise) if equal is None else equal
    return attempt


def _segment(noise: np.random.Generator, most: int) -> list[_Turn]:
    """Zero to three turns; a row begins with an observation, and one in four ends with one."""
    size = int(noise.choice([0, 1, 1, 2, 3]))
    turns = [
        _Turn(
            observed=int(noise.integers(0 if index else 1, 4)),
            sampled=int(noise.integers(0 if noise.random() < 0.2 else 1, most)),
            reward=0.0,
            state=int(noise.integers(0, 4)),
        )
        for index in range(size)
    ]
    if turns and noise.random() < 0.25:
        turns.append(_Turn(observed=2, sampled=0, reward=0.0, state=int(noise.integers(0, 4))))
    return turns


def _turn_fields(attempts: list[_Attempt], per_token: list[Any], mask: Any) -> dict[str, Any]:
    """Turns numbered over the batch, their rewards, and trajectory rewards including those per token."""
    owned = [
        (owner, turn) for owner, attempt in enumerate(attempts) for segment in attempt.segments for turn in segment
    ]
    turn = np.repeat(np.arange(len(owned)), [turn.num_tokens for _, turn in owned])
    owners = np.array([owner for owner, _ in owned])
    rewards = np.zeros(len(attempts))
    np.add.at(rewards, owners, [turn.reward for _, turn in owned])
    for row in per_token:
        if row is not None:
            np.add.at(rewards, owners[turn[mask]], np.nan_to_num(row[mask]))
    return {
        "turn": _ints(turn),
        "turn_trajectory": _ints(owners),
        "turn_rewards": torch.tensor([turn.reward for _, turn in owned]),
        "turn_states": _ints([turn.state for _, turn in owned]),
        "rewards": torch.as_tensor(rewards.astype(np.float32)),
    }


def _penalties(noise: np.random.Generator, attempts: list[_Attempt], mask: Any) -> Any:
    """Penalties of either sign; none in groups with equal rewards, which they would make unequal."""
    return np.where(_unequal(attempts), noise.integers(-256, 257, len(mask)) * _GRAIN, 0.0)


def _spans(seed: int, attempts: list[_Attempt], mask: Any) -> Any:
    """Rewards of spans at some trained tokens, NaN elsewhere; none in groups with equal rewards."""
    noise = np.random.default_rng([seed, 1])
    ends = mask & _unequal(attempts) & (noise.random(len(mask)) < 0.3)
    return np.where(ends, noise.integers(-256, 257, len(mask)) * _GRAIN, np.nan)


def _unequal(attempts: list[_Attempt]) -> Any:
    """[tokens] bool: tokens of groups whose trajectories have different rewards."""
    sums: dict[int, set[float]] = {}
    for attempt in attempts:
        total = sum(turn.reward for segment in attempt.segments for turn in segment)
        sums.setdefault(attempt.group, set()).add(total)
    return np.array(_flat(attempts, lambda attempt, turn: [len(sums[attempt.group]) > 1] * turn.num_tokens), np.bool_)


def _part(noise: np.random.Generator, size: int) -> torch.Tensor:
    """A reward part: 0, 1 or missing; never missing for the first trajectory."""
    values = noise.choice([0.0, 1.0, np.nan], size)
    values[0] = noise.choice([0.0, 1.0])
    return torch.as_tensor(values.astype(np.float32))


def _group_ids(noise: np.random.Generator, attempts: list[_Attempt]) -> list[int]:
    """Ids that neither begin at 0 nor are consecutive."""
    names = noise.permutation(1000)
    return [int(names[attempt.group]) for attempt in attempts]


def _grains(noise: np.random.Generator) -> float:
    return float(noise.integers(-(2**16), 2**16 + 1) * _GRAIN)


def _drift(noise: np.random.Generator, size: int) -> Any:
    """Logprob differences between two policies: mostly small, sometimes far beyond any clip."""
    return noise.normal(0, 1, size) * noise.choice([0.01, 0.2, 0.2, 1.0], size)


def _with_garbage(noise: np.random.Generator, row: Any, mask: Any) -> torch.Tensor:
    """The row in fp32, with garbage where the mask is false."""
    return torch.as_tensor(np.where(mask, row, noise.choice(_GARBAGE, len(row))).astype(np.float32))


def _flat(attempts: list[_Attempt], of_turn: Callable[[_Attempt, _Turn], list[bool]]) -> list[bool]:
    return [
        item
        for attempt in attempts
        for segment in attempt.segments
        for turn in segment
        for item in of_turn(attempt, turn)
    ]


def _ints(items: Any) -> torch.Tensor:
    return torch.as_tensor(np.asarray(items, np.int64))
