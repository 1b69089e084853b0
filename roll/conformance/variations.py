"""The same batch in another shape: changes that must not matter to any token that is trained on.

Each returns the changed case and, for each of its tokens, the place that token had before; -1 for a token that is new.
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
    "penalties",
    "old_logprobs",
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
    places: list[int]
    """Where each token comes from; -1 for a new one."""
    turns: list[int]


def shuffled(case: Case) -> Variation:
    """Trajectories in another order; the rows of each stay together."""
    order = np.random.default_rng(case.seed).permutation(len(case.batch.rewards))
    rows = _rows(case.batch)
    moved, before = _rebuilt(case, [row for owner in order for row in rows if row.owner == owner])
    return replace(moved, batch=_renumbered(moved.batch, order)), before


def observed(case: Case) -> Variation:
    """With further untrained tokens between the others, and after the last one of every row that is not empty."""
    noise = np.random.default_rng(case.seed)
    rows: list[_Row] = []
    for row in _rows(case.batch):
        places, turns = list(row.places[:1]), list(row.turns[:1])
        for place, turn in zip(row.places[1:], row.turns[1:], strict=True):
            new = int(noise.choice([0, 0, 1, 2]))
            places += [-1] * new + [place]
            turns += [turn] * (new + 1)
        rows.append(_trailed(_Row(owner=row.owner, places=places, turns=turns)))
    return _rebuilt(case, rows)


def trailed(case: Case) -> Variation:
    """With two untrained tokens behind every row that is not empty: what a model read before them stays the same."""
    return _rebuilt(case, [_trailed(row) for row in _rows(case.batch)])


def masked(case: Case, *, empty: bool = True) -> Variation:
    """With an all-masked row, and an empty one if asked, behind the rows of some trajectories."""
    rows: list[_Row] = []
    own = _rows(case.batch)
    for place, row in enumerate(own):
        rows.append(row)
        if place + 1 == len(own) or own[place + 1].owner != row.owner:
            if empty:
                rows.append(_Row(owner=row.owner, places=[], turns=[]))
            rows.append(_Row(owner=row.owner, places=[-1, -1, -1], turns=[_last_turn(case, row)] * 3))
    return _rebuilt(case, rows)


def cut(case: Case) -> Variation:
    """With some rows cut in two, so that a trajectory has more rows; no loss over rows is the same after this."""
    noise = np.random.default_rng(case.seed)
    rows: list[_Row] = []
    for row in _rows(case.batch):
        if noise.random() < 0.5:
            rows.append(row)
            continue
        at = int(noise.integers(0, len(row.places) + 1))
        rows.append(_Row(owner=row.owner, places=row.places[:at], turns=row.turns[:at]))
        rows.append(_Row(owner=row.owner, places=row.places[at:], turns=row.turns[at:]))
    return _rebuilt(case, rows)


def renamed(case: Case) -> Variation:
    """With other group ids, in another order."""
    names = np.random.default_rng(case.seed).permutation(1000) + 5
    ids, index = np.unique(case.batch.group.numpy(), return_inverse=True)
    group = torch.as_tensor(names[: len(ids)][index].astype(np.int64))
    return _same(case, replace(case.batch, group=group))


def soiled(case: Case) -> Variation:
    """With other garbage on every token that is not trained on."""
    return _rebuilt(case, _rows(case.batch), clean=False)


def rescaled(case: Case, *, factor: float, shift: float = 0.0) -> Case:
    """With every trajectory's reward times `factor` plus `shift`, its turns' rewards and penalties to match."""
    batch = case.batch
    turns = batch.turn_rewards * factor
    last = {int(owner): turn for turn, owner in enumerate(batch.turn_trajectory)}
    turns[list(last.values())] += shift
    penalties = None if batch.penalties is None else batch.penalties * factor
    rewards = batch.rewards * factor + shift
    return replace(case, batch=replace(batch, rewards=rewards, turn_rewards=turns, penalties=penalties))


def _rows(batch: Batch) -> list[_Row]:
    ends = np.cumsum(batch.lengths).tolist()
    turn: list[int] = batch.turn.numpy().tolist()
    return [
        _Row(
            owner=int(batch.trajectory[row]),
            places=list(range(end - batch.lengths[row], end)),
            turns=turn[end - batch.lengths[row] : end],
        )
        for row, end in enumerate(ends)
    ]


def _trailed(row: _Row) -> _Row:
    """With two new tokens behind the others; an empty row has no turn that they could be part of."""
    more = 2 if row.places else 0
    return replace(row, places=row.places + [-1] * more, turns=row.turns + row.turns[-1:] * more)


def _last_turn(case: Case, row: _Row) -> int:
    """The turn that more observation at the end of this row belongs to."""
    return row.turns[-1] if row.turns else int((case.batch.turn_trajectory == row.owner).nonzero()[-1])


def _rebuilt(case: Case, rows: Sequence[_Row], *, clean: bool = True) -> Variation:
    """A case of these rows. New tokens get garbage, and unless `clean` so do all untrained ones."""
    before = np.array([place for row in rows for place in row.places], np.int64)
    noise = np.random.default_rng(case.seed + 1)
    trained = _taken(case.batch.trained, before, False)
    fresh = torch.as_tensor(before < 0) if clean else ~trained

    def row(tensor: torch.Tensor | None) -> Any:
        if tensor is None:
            return None
        garbage = torch.as_tensor(noise.choice(_GARBAGE, len(before)).astype(np.float32))
        return torch.where(fresh, garbage, _taken(tensor, before, 0.0))

    assert case.batch.weights is not None
    batch = replace(
        case.batch,
        ids=_taken(case.batch.ids, before, 0),
        trained=trained,
        versions=_taken(case.batch.versions, before, -1),
        weights=_taken(case.batch.weights, before, 0.0),
        lengths=tuple(len(row.places) for row in rows),
        trajectory=torch.tensor([row.owner for row in rows]),
        turn=torch.tensor([turn for row in rows for turn in row.turns], dtype=torch.int64),
        **{name: row(getattr(case.batch, name)) for name in _TOKEN_FIELDS},
    )
    return replace(case, batch=batch, **{name: row(getattr(case, name)) for name in _CASE_FIELDS}), before


def _taken(tensor: torch.Tensor, before: Ints, missing: float) -> torch.Tensor:
    """The entries of these places, `missing` where there was none."""
    padded = torch.cat([tensor, torch.full((1,), missing).to(tensor.dtype)])
    return padded[torch.as_tensor(np.where(before < 0, len(tensor), before))]


def _renumbered(batch: Batch, order: Ints) -> Batch:
    """Trajectories counted in their new order, and turns along with them."""
    place = torch.as_tensor(np.argsort(order))
    index = torch.as_tensor(order.copy())
    turns = torch.as_tensor(np.argsort(place[batch.turn_trajectory].numpy(), kind="stable"))
    states = batch.turn_states
    return replace(
        batch,
        trajectory=place[batch.trajectory],
        group=batch.group[index],
        rewards=batch.rewards[index],
        truncated=batch.truncated[index],
        parts={name: part[index] for name, part in batch.parts.items()},
        turn=torch.argsort(turns)[batch.turn],
        turn_trajectory=place[batch.turn_trajectory][turns],
        turn_rewards=batch.turn_rewards[turns],
        turn_states=None if states is None else states[turns],
    )


def _same(case: Case, batch: Batch) -> Variation:
    return replace(case, batch=batch), np.arange(batch.num_tokens)
