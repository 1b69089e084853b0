"""Sums over ragged parts of a batch: by trajectory, turn or group, and along the trained tokens of a trajectory.

Everything is one pass over flat rows, or a few; there is no loop over tokens, turns or trajectories. All rows of a
trajectory are neighbours and in order, and turns are counted upwards along it; nothing else is taken from the order.
What stands at an untrained token is never read.
"""

from __future__ import annotations

from typing import Any, cast

import torch

from roll.types import Batch


def sum_by(index: torch.Tensor, values: torch.Tensor, size: int) -> torch.Tensor:
    """[size]: the sum of the values with each index; 0 where no entry has it."""
    return torch.zeros(size, dtype=values.dtype, device=values.device).index_add_(0, index, values)


def siblings(*keys: torch.Tensor) -> torch.Tensor:
    """Numbers from 0 that are equal exactly where all of the keys are equal; never more numbers than entries."""
    together = torch.zeros_like(keys[0])
    for key in keys:
        together = _numbered(together * len(key) + _numbered(key))
    return together


def mean_by(index: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """For every entry the mean over all entries of its index, in double precision; exact where those are equal.

    Indices are below the number of entries, as those of `siblings`.
    """
    total = sum_by(index, values.double(), len(values))
    return (total / count_by(index).clamp(min=1))[index]


def deviation_by(index: torch.Tensor, values: torch.Tensor, *, unbiased: bool) -> torch.Tensor:
    """For every entry the standard deviation over all entries of its index; exactly 0 where those are equal.

    `unbiased` divides the sum of squares by one less than their number; of a single entry it is 0 either way.
    """
    squares = sum_by(index, (values.double() - mean_by(index, values)).square(), len(values))
    return (squares / (count_by(index) - int(unbiased)).clamp(min=1)).sqrt()[index]


def count_by(index: torch.Tensor) -> torch.Tensor:
    """How many entries have each index; as long as there are entries, as no index is above them."""
    return torch.bincount(index, minlength=len(index))


def divided(centred: torch.Tensor, deviation: torch.Tensor, eps: float) -> torch.Tensor:
    """`centred` over `deviation` plus `eps`; exactly 0 where nothing deviates."""
    return torch.where(deviation > 0, centred / (deviation + eps), torch.zeros_like(centred))


def owners(batch: Batch) -> torch.Tensor:
    """[tokens] int64: the trajectory each token belongs to."""
    return _along_rows(batch, batch.trajectory)


def num_trained(batch: Batch) -> torch.Tensor:
    """[trajectories] fp64: how many trained tokens each has, over all its rows."""
    return sum_by(owners(batch), batch.trained.double(), len(batch.rewards))


def spread(batch: Batch, per_trajectory: torch.Tensor) -> torch.Tensor:
    """[tokens] fp32: what each trajectory has, on all its trained tokens; 0 on the others."""
    return _on_trained(batch, _along_rows(batch, per_trajectory[batch.trajectory]))


def spread_turns(batch: Batch, per_turn: torch.Tensor) -> torch.Tensor:
    """[tokens] fp32: what each turn has, on all its trained tokens; 0 on the others."""
    return _on_trained(batch, per_turn.float().index_select(0, batch.turn))


def trained_tokens(batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Where the trained tokens stand, in order, and the trajectory of each."""
    places = batch.trained.nonzero().squeeze(1)
    return places, owners(batch).index_select(0, places)


def lay_out(batch: Batch, places: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """[tokens]: the values at their places, 0 elsewhere."""
    return torch.zeros(batch.num_tokens, dtype=values.dtype, device=values.device).index_copy_(0, places, values)


def token_rewards(batch: Batch) -> torch.Tensor:
    """[tokens] fp32: what each token earned by itself; a trajectory's tokens sum to its reward.

    A turn's reward lies on the last trained token of the turn, whatever was observed after it. A turn in which nothing
    was sampled gives its reward to the last trained token before it, or else to the first after it. Penalties are taken
    off at the tokens they are about.
    """
    places, owner = trained_tokens(batch)
    row = torch.zeros(batch.num_tokens, dtype=torch.float64, device=batch.trained.device)
    if len(places):
        earning = _earning_tokens(batch, places, owner)
        lost = earning < 0  # of a trajectory without a trained token: nobody earned it
        row.index_add_(0, earning.clamp(min=0), batch.turn_rewards.double().masked_fill(lost, 0.0))
    if batch.penalties is not None:
        row -= _on_trained(batch, batch.penalties)
    return row.float()


def to_go(batch: Batch, row: torch.Tensor, decay: float) -> torch.Tensor:
    """[tokens] fp64: `row` summed from each trained token to the last of its trajectory, `decay` less with each token.

    Untrained tokens are left out: they neither count nor lengthen the way. 0 on them.
    """
    places, owner = trained_tokens(batch)
    return lay_out(batch, places, suffix_sums(owner, row.index_select(0, places), decay))


def turns_to_go(batch: Batch, decay: float) -> torch.Tensor:
    """[turns] fp64: rewards summed from each turn to the last of its trajectory, `decay` less with each turn.

    Penalties count against the turn of their token.
    """
    rewards = batch.turn_rewards.double()
    if batch.penalties is not None:
        lost = _on_trained(batch, batch.penalties).double()
        rewards = rewards - sum_by(batch.turn, lost, len(rewards))
    order = torch.argsort(batch.turn_trajectory, stable=True)
    sums = suffix_sums(batch.turn_trajectory[order], rewards[order], decay)
    return torch.empty_like(sums).index_copy_(0, order, sums)


def suffix_sums(owner: torch.Tensor, values: torch.Tensor, decay: float) -> torch.Tensor:
    """fp64: each value plus `decay` times the result of the next, as long as the owner is the same.

    By doubling: after k passes an entry holds the sum over the next 2**k entries, so the longest run decides how many
    passes there are. Nothing passes from one owner to another, as rounding would in one cumulative sum over all.
    """
    ends = last_of_run(owner).nonzero().squeeze(1)
    longest = int(ends.diff(prepend=ends.new_full((1,), -1)).max()) if len(ends) else 0
    sums = values.to(torch.float64, copy=True)
    reach = 1
    while reach < longest:
        beyond = torch.where(owner[reach:] == owner[:-reach], sums[reach:], 0.0)
        sums[:-reach].add_(beyond, alpha=decay**reach)
        reach *= 2
    return sums


def last_of_run(index: torch.Tensor) -> torch.Tensor:
    """True where the next entry is another, and at the end."""
    last = torch.ones_like(index, dtype=torch.bool)
    last[:-1] = index[1:] != index[:-1]
    return last


def _numbered(key: torch.Tensor) -> torch.Tensor:
    return cast(Any, torch).unique(key, return_inverse=True)[1]


def _earning_tokens(batch: Batch, places: torch.Tensor, owner: torch.Tensor) -> torch.Tensor:
    """[turns] int64: the token that gets each turn's reward; -1 where its trajectory has no trained token."""
    turn = batch.turn.index_select(0, places)
    last = last_of_run(turn).nonzero().squeeze(1)
    earning = torch.full_like(batch.turn_trajectory, -1)
    earning[turn[last]] = places[last]
    begins = last_of_run(owner).roll(1).nonzero().squeeze(1)
    first = torch.full_like(batch.group, -1)
    first[owner[begins]] = places[begins]

    order = torch.argsort(batch.turn_trajectory, stable=True)
    known, whose = earning[order], batch.turn_trajectory[order]
    here = torch.arange(len(order), device=order.device)
    before = torch.where(known < 0, -1, here).cummax(0).values
    inside = (before >= 0) & (whose[before] == whose)
    earning[order] = torch.where(inside, known[before], first[whose])
    return earning


def _along_rows(batch: Batch, per_row: torch.Tensor) -> torch.Tensor:
    lengths = torch.tensor(batch.lengths, dtype=torch.int64, device=per_row.device)
    return torch.repeat_interleave(per_row, lengths, output_size=batch.num_tokens)


def _on_trained(batch: Batch, row: torch.Tensor) -> torch.Tensor:
    return torch.where(batch.trained, row, 0.0).float()
