"""Sums over ragged parts of a batch: by trajectory, turn or group, and along the trained tokens of a trajectory;
aggregations, which turn them into one loss weight per token.

All functions take a few passes over flat rows, without a loop over tokens, turns or trajectories. All rows of a
trajectory are adjacent and in order, and turn numbers increase along it; nothing else depends on order. Values at
untrained tokens are never read.
"""

from __future__ import annotations

from typing import Any, cast

import torch

from roll.errors import ConfigError
from roll.types import Batch


def sum_by(index: torch.Tensor, values: torch.Tensor, size: int) -> torch.Tensor:
    """[size]: sum of the values with each index; 0 for an index without entries."""
    return torch.zeros(size, dtype=values.dtype, device=values.device).index_add_(0, index, values)


def siblings(*keys: torch.Tensor) -> torch.Tensor:
    """Numbers from 0 that are equal exactly where all keys are equal; fewer numbers than entries or as many."""
    combined = torch.zeros_like(keys[0])
    for key in keys:
        combined = _number(combined * len(key) + _number(key))
    return combined


def mean_by(index: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """For every entry, the mean over all entries of its index, in double precision; exact if they are equal.

    Indices are below the number of entries, as those of `siblings` are.
    """
    total = sum_by(index, values.double(), len(values))
    return (total / count_by(index).clamp(min=1))[index]


def deviation_by(index: torch.Tensor, values: torch.Tensor, *, unbiased: bool) -> torch.Tensor:
    """For every entry, the standard deviation over all entries of its index; exactly 0 if they are equal.

    `unbiased` divides the sum of squares by n - 1; for a single entry the result is 0 either way.
    """
    squares = sum_by(index, (values.double() - mean_by(index, values)).square(), len(values))
    return (squares / (count_by(index) - int(unbiased)).clamp(min=1)).sqrt()[index]


def count_by(index: torch.Tensor) -> torch.Tensor:
    """Number of entries of each index, as long as `index`, because no index is above the number of entries."""
    return torch.bincount(index, minlength=len(index))


def divide_or_zero(centred: torch.Tensor, deviation: torch.Tensor, eps: float) -> torch.Tensor:
    """`centred` divided by `deviation` plus `eps`; exactly 0 where the deviation is 0."""
    return torch.where(deviation > 0, centred / (deviation + eps), torch.zeros_like(centred))


def owners(batch: Batch) -> torch.Tensor:
    """[tokens] int64: the trajectory of each token."""
    return _along_rows(batch, batch.trajectory)


def num_trained(batch: Batch) -> torch.Tensor:
    """[trajectories] fp64: number of trained tokens, over all rows."""
    return sum_by(owners(batch), batch.trained.double(), len(batch.rewards))


def to_tokens(batch: Batch, per_trajectory: torch.Tensor) -> torch.Tensor:
    """[tokens] fp32: the trajectory's value on its trained tokens; 0 elsewhere."""
    return _on_trained(batch, _along_rows(batch, per_trajectory[batch.trajectory]))


def turns_to_tokens(batch: Batch, per_turn: torch.Tensor) -> torch.Tensor:
    """[tokens] fp32: the turn's value on its trained tokens; 0 elsewhere."""
    return _on_trained(batch, per_turn.float().index_select(0, batch.turn))


def locate_trained(batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Positions of the trained tokens, in order, and the trajectory of each."""
    positions = batch.trained.nonzero().squeeze(1)
    return positions, owners(batch).index_select(0, positions)


def scatter(batch: Batch, positions: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """[tokens]: the values at their positions, 0 elsewhere."""
    return torch.zeros(batch.num_tokens, dtype=values.dtype, device=values.device).index_copy_(0, positions, values)


def token_rewards(batch: Batch) -> torch.Tensor:
    """[tokens] fp32: the reward of each token; over a trajectory they sum to its reward.

    A turn's reward goes to the last trained token of the turn, even if observations follow. The reward of a turn
    without trained tokens goes to the last trained token before it, otherwise to the first after it. Rewards of spans
    are added, and penalties subtracted, at their own tokens.
    """
    positions, owner = locate_trained(batch)
    row = torch.zeros(batch.num_tokens, dtype=torch.float64, device=batch.trained.device)
    if len(positions):
        earning = _earning_tokens(batch, positions, owner)
        lost = earning < 0  # the trajectory has no trained token
        row.index_add_(0, earning.clamp(min=0), batch.turn_rewards.double().masked_fill(lost, 0.0))
    row += _within_responses(batch)
    return row.float()


def sum_to_go(batch: Batch, row: torch.Tensor, decay: float) -> torch.Tensor:
    """[tokens] fp64: `row` summed from each trained token to its trajectory's last, discounted by `decay` per token.

    Untrained tokens are skipped: they contribute nothing, add no discount, and get 0.
    """
    positions, owner = locate_trained(batch)
    return scatter(batch, positions, suffix_sums(owner, row.index_select(0, positions), decay))


def turn_returns(batch: Batch, decay: float) -> torch.Tensor:
    """[turns] fp64: rewards summed from each turn to its trajectory's last, discounted by `decay` per turn.

    Rewards of spans and penalties count in the turn of their token.
    """
    rewards = batch.turn_rewards.double()
    if batch.span_rewards is not None or batch.penalties is not None:
        rewards = rewards + sum_by(batch.turn, _within_responses(batch), len(rewards))
    order = torch.argsort(batch.turn_trajectory, stable=True)
    sums = suffix_sums(batch.turn_trajectory[order], rewards[order], decay)
    return torch.empty_like(sums).index_copy_(0, order, sums)


def suffix_sums(owner: torch.Tensor, values: torch.Tensor, decay: float) -> torch.Tensor:
    """fp64: each value plus `decay` times the result of the next, as long as the owner is the same.

    By doubling: after k passes an entry holds the sum over the next 2**k entries, so the longest run sets the number of
    passes. No rounding passes from one owner to another, as it would in one cumulative sum over all entries.
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
    """True at the last entry of each run of equal entries."""
    last = torch.ones_like(index, dtype=torch.bool)
    last[:-1] = index[1:] != index[:-1]
    return last


def _number(key: torch.Tensor) -> torch.Tensor:
    return cast(Any, torch).unique(key, return_inverse=True)[1]


def _earning_tokens(batch: Batch, positions: torch.Tensor, owner: torch.Tensor) -> torch.Tensor:
    """[turns] int64: the token that gets each turn's reward; -1 where its trajectory has no trained token."""
    turn = batch.turn.index_select(0, positions)
    last = last_of_run(turn).nonzero().squeeze(1)
    earning = torch.full_like(batch.turn_trajectory, -1)
    earning[turn[last]] = positions[last]
    begins = last_of_run(owner).roll(1).nonzero().squeeze(1)
    first = torch.full_like(batch.group, -1)
    first[owner[begins]] = positions[begins]

    order = torch.argsort(batch.turn_trajectory, stable=True)
    known, owner_of = earning[order], batch.turn_trajectory[order]
    here = torch.arange(len(order), device=order.device)
    before = torch.where(known < 0, -1, here).cummax(0).values
    inside = (before >= 0) & (owner_of[before] == owner_of)
    earning[order] = torch.where(inside, known[before], first[owner_of])
    return earning


def _along_rows(batch: Batch, per_row: torch.Tensor) -> torch.Tensor:
    lengths = torch.tensor(batch.lengths, dtype=torch.int64, device=per_row.device)
    return torch.repeat_interleave(per_row, lengths, output_size=batch.num_tokens)


def spans_of(batch: Batch) -> torch.Tensor:
    """[tokens] bool: trained tokens at which a span with a reward ends."""
    if batch.span_rewards is None:
        return torch.zeros_like(batch.trained)
    return batch.trained & ~batch.span_rewards.isnan()


def _within_responses(batch: Batch) -> torch.Tensor:
    """[tokens] fp64: rewards that a batch has per token: those of spans minus penalties."""
    row = torch.zeros(batch.num_tokens, dtype=torch.float64, device=batch.trained.device)
    if batch.span_rewards is not None:
        row += torch.where(spans_of(batch), batch.span_rewards, 0.0)
    if batch.penalties is not None:
        row -= _on_trained(batch, batch.penalties)
    return row


def _on_trained(batch: Batch, row: torch.Tensor) -> torch.Tensor:
    return torch.where(batch.trained, row, 0.0).float()


def token_mean(batch: Batch) -> torch.Tensor:
    """Mean over all trained tokens of the batch."""
    return batch.trained.float() / batch.trained.sum().clamp(min=1)


def sequence_mean_token_mean(batch: Batch) -> torch.Tensor:
    """Mean over sequences of the mean over each one's trained tokens."""
    in_row = _trained_in_rows(batch)
    return batch.trained.float() / (_num_sequences(in_row) * in_row.clamp(min=1))[rows_of(batch)]


def sequence_mean_token_sum(batch: Batch) -> torch.Tensor:
    """Mean over sequences of the sum over each one's trained tokens: longer ones count more."""
    return batch.trained.float() / _num_sequences(_trained_in_rows(batch))


def constant(batch: Batch, *, tokens: int) -> torch.Tensor:
    """Sum over a sequence's trained tokens divided by a constant, averaged over sequences.

    Dr. GRPO: `tokens` is the largest response length allowed, so that a response's own length has no effect.
    """
    if tokens < 1:
        raise ConfigError(f"constant: tokens must be at least 1 (got {tokens}); set it to the longest response")
    return batch.trained.float() / (_num_sequences(_trained_in_rows(batch)) * tokens)


def rows_of(batch: Batch) -> torch.Tensor:
    """[tokens] int64: the sequence of each token."""
    lengths = torch.tensor(batch.lengths, dtype=torch.int64, device=batch.trained.device)
    return torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths)


def _trained_in_rows(batch: Batch) -> torch.Tensor:
    """[rows] int64, because fp32 stops counting at 16 million."""
    return sum_by(rows_of(batch), batch.trained.long(), len(batch.lengths))


def _num_sequences(in_row: torch.Tensor) -> torch.Tensor:
    """Number of sequences with a trained token; at least 1, because it is a divisor."""
    return (in_row > 0).sum().clamp(min=1)
