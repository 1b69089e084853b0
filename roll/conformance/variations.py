"""Variations of a batch that must not change the result of any trained token.

Each returns the changed case and, for each of its tokens, that token's original position; -1 for a new token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch

from roll.conformance.batches import Case
from roll.conformance.exact import Ints
from roll.types import Batch

Variation: TypeAlias = tuple[Case, Ints]
_TOKEN_FIELDS = (
    "sampler_logprobs",
    "span_rewards",
    "penalties",
    "old_logprobs",
    "entropies",
    "ref_logprobs",
    "teacher_logprobs",
    "values",
    "returns",
    "advantages",
)
_CASE_FIELDS = ("logprobs", "values", "entropies")
_GARBAGE = (np.nan, np.inf, 1e30, -3.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    owner: int
    positions: list[int]
    """Original position of each token; -1 for a new one."""
    turns: list[int]


def shuffle(case: Case) -> Variation:
    """Trajectories in another order; the rows of each stay together."""
    order = np.random.default_rng(case.seed).permutation(len(case.batch.rewards))
    rows = _rows(case.batch)
    reordered, before = _rebuild(case, [row for owner in order for row in rows if row.owner == owner])
    return replace(reordered, batch=_renumber(reordered.batch, order)), before


def insert_observations(case: Case) -> Variation:
    """Adds untrained tokens between the others, and after the last one of every non-empty row."""
    noise = np.random.default_rng(case.seed)
    rows: list[_Row] = []
    for row in _rows(case.batch):
        positions, turns = list(row.positions[:1]), list(row.turns[:1])
        for position, turn in zip(row.positions[1:], row.turns[1:], strict=True):
            new = int(noise.choice([0, 0, 1, 2]))
            positions += [-1] * new + [position]
            turns += [turn] * (new + 1)
        rows.append(_append_observations(_Row(owner=row.owner, positions=positions, turns=turns)))
    return _rebuild(case, rows)


def append_observations(case: Case) -> Variation:
    """Adds two untrained tokens after every non-empty row, which leaves a model's inputs before them unchanged."""
    return _rebuild(case, [_append_observations(row) for row in _rows(case.batch)])


def add_masked_rows(case: Case, *, empty: bool = True) -> Variation:
    """Adds an all-masked row, and an empty one if `empty`, after the rows of some trajectories."""
    rows: list[_Row] = []
    existing = _rows(case.batch)
    for index, row in enumerate(existing):
        rows.append(row)
        if index + 1 == len(existing) or existing[index + 1].owner != row.owner:
            if empty:
                rows.append(_Row(owner=row.owner, positions=[], turns=[]))
            rows.append(_Row(owner=row.owner, positions=[-1, -1, -1], turns=[_last_turn(case, row)] * 3))
    return _rebuild(case, rows)


def divide_rows(case: Case) -> Variation:
    """Divides some rows in two, so that a trajectory has more rows; losses over rows change with this."""
    noise = np.random.default_rng(case.seed)
    rows: list[_Row] = []
    for row in _rows(case.batch):
        if noise.random() < 0.5:
            rows.append(row)
            continue
        at = int(noise.integers(0, len(row.positions) + 1))
        rows.append(_Row(owner=row.owner, positions=row.positions[:at], turns=row.turns[:at]))
        rows.append(_Row(owner=row.owner, positions=row.positions[at:], turns=row.turns[at:]))
    return _rebuild(case, rows)


def rename_groups(case: Case) -> Variation:
    """Replaces group ids by others, in another order."""
    names = np.random.default_rng(case.seed).permutation(1000) + 5
    ids, index = np.unique(case.batch.group.numpy(), return_inverse=True)
    group = torch.as_tensor(names[: len(ids)][index].astype(np.int64))
    return replace(case, batch=replace(case.batch, group=group)), np.arange(case.batch.num_tokens)


def replace_garbage(case: Case) -> Variation:
    """Replaces the values of every untrained token by other garbage."""
    return _rebuild(case, _rows(case.batch), clean=False)


def rescale(case: Case, *, factor: float, shift: float = 0.0) -> Case:
    """Every trajectory's reward times `factor` plus `shift`, with rewards per turn and per token to match."""
    batch = case.batch
    turns = batch.turn_rewards * factor
    last = {int(owner): turn for turn, owner in enumerate(batch.turn_trajectory)}
    turns[list(last.values())] += shift
    per_token = {name: getattr(batch, name) for name in ("span_rewards", "penalties")}
    scaled = {name: None if row is None else row * factor for name, row in per_token.items()}
    return replace(case, batch=replace(batch, rewards=batch.rewards * factor + shift, turn_rewards=turns, **scaled))


def _rows(batch: Batch) -> list[_Row]:
    ends = np.cumsum(batch.lengths).tolist()
    turn: list[int] = batch.turn.numpy().tolist()
    return [
        _Row(
            owner=int(batch.trajectory[row]),
            positions=list(range(end - batch.lengths[row], end)),
            turns=turn[end - batch.lengths[row] : end],
        )
        for row, end in enumerate(ends)
    ]


def _append_observations(row: _Row) -> _Row:
    """Adds two new tokens at the end; an empty row has no turn that they could belong to."""
    more = 2 if row.positions else 0
    return replace(row, positions=row.positions + [-1] * more, turns=row.turns + row.turns[-1:] * more)


def _last_turn(case: Case, row: _Row) -> int:
    """The turn that further observations at the end of this row belong to."""
    return row.turns[-1] if row.turns else int((case.batch.turn_trajectory == row.owner).nonzero()[-1])


def _rebuild(case: Case, rows: Sequence[_Row], *, clean: bool = True) -> Variation:
    """A case of these rows. New tokens get garbage values; with `clean` false, so do all untrained tokens."""
    before = np.array([position for row in rows for position in row.positions], np.int64)
    noise = np.random.default_rng(case.seed + 1)
    trained = _gather(case.batch.trained, before, False)
    fresh = torch.as_tensor(before < 0) if clean else ~trained

    def row(tensor: torch.Tensor | None) -> Any:
        if tensor is None:
            return None
        garbage = torch.as_tensor(noise.choice(_GARBAGE, len(before)).astype(np.float32))
        return torch.where(fresh, garbage, _gather(tensor, before, 0.0))

    assert case.batch.weights is not None
    batch = replace(
        case.batch,
        ids=_gather(case.batch.ids, before, 0),
        trained=trained,
        versions=_gather(case.batch.versions, before, -1),
        weights=_gather(case.batch.weights, before, 0.0),
        lengths=tuple(len(row.positions) for row in rows),
        trajectory=torch.tensor([row.owner for row in rows]),
        turn=torch.tensor([turn for row in rows for turn in row.turns], dtype=torch.int64),
        **{name: row(getattr(case.batch, name)) for name in _TOKEN_FIELDS},
    )
    return replace(case, batch=batch, **{name: row(getattr(case, name)) for name in _CASE_FIELDS}), before


def _gather(tensor: torch.Tensor, before: Ints, missing: float) -> torch.Tensor:
    """The entries at these positions, `missing` where there is none."""
    padded = torch.cat([tensor, torch.full((1,), missing).to(tensor.dtype)])
    return padded[torch.as_tensor(np.where(before < 0, len(tensor), before))]


def _renumber(batch: Batch, order: Ints) -> Batch:
    """Numbers trajectories in their new order, and their turns likewise."""
    position = torch.as_tensor(np.argsort(order))
    index = torch.as_tensor(order.copy())
    turns = torch.as_tensor(np.argsort(position[batch.turn_trajectory].numpy(), kind="stable"))
    states = batch.turn_states
    return replace(
        batch,
        trajectory=position[batch.trajectory],
        group=batch.group[index],
        rewards=batch.rewards[index],
        truncated=batch.truncated[index],
        parts={name: part[index] for name, part in batch.parts.items()},
        turn=torch.argsort(turns)[batch.turn],
        turn_trajectory=position[batch.turn_trajectory][turns],
        turn_rewards=batch.turn_rewards[turns],
        turn_states=None if states is None else states[turns],
    )
