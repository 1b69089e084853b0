"""Batches of flat rows from trajectories, and their split into micro-batches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

import numpy as np
import torch

from roll.algorithms.segments import token_mean
from roll.types import Batch, Group, Status, Trajectory, Turn

_COMPUTED = (
    "span_rewards", "penalties", "old_logprobs", "entropies", "ref_logprobs", "teacher_logprobs", "values",
    "advantages", "returns", "weights",
)  # fmt: skip
"""Fields of a batch that later stages add, one value per token."""


def collate(groups: Sequence[Group]) -> Batch:
    """One batch of all segments, ordered by group id, sibling, agent and segment, for any order of `groups`.

    An attempt with several agents becomes one trajectory per agent, and its group one group per agent, so that an
    agent's reward is compared with the same agent's rewards in other attempts. `group` numbers these from 0.
    """
    rows = _BatchBuilder()
    for group in sorted(groups, key=attrgetter("id")):
        for trajectory in sorted(group.trajectories, key=attrgetter("sibling")):
            for agent, part in trajectory.by_agent().items():
                rows.add((group.id, agent), part)
    return rows.batch()


def supervised(rows: Sequence[Sequence[Sequence[int]]]) -> Batch:
    """A batch for supervised learning: advantages of 1, and weights for the mean over answer tokens.

    A row alternates prompts and answers, beginning with a prompt.
    """
    size = len(rows)
    lengths = tuple(sum(map(len, row)) for row in rows)
    assert all(row and len(row) % 2 == 0 and all(map(len, row)) for row in rows), "a row needs a prompt and an answer"
    ids = [token for row in rows for part in row for token in part]
    trained = [index % 2 == 1 for row in rows for index, part in enumerate(row) for _ in part]
    mask = torch.tensor(trained, dtype=torch.bool)
    batch = Batch(
        ids=torch.tensor(ids, dtype=torch.int64),
        trained=mask,
        sampler_logprobs=torch.zeros(len(ids)),
        versions=mask.to(torch.int32) - 1,
        lengths=lengths,
        trajectory=torch.arange(size),
        group=torch.arange(size),
        rewards=torch.zeros(size),
        truncated=torch.zeros(size, dtype=torch.bool),
        turn=torch.repeat_interleave(torch.arange(size), torch.tensor(lengths)),
        turn_trajectory=torch.arange(size),
        turn_rewards=torch.zeros(size),
        advantages=mask.float(),
    )
    return replace(batch, weights=token_mean(batch))


def split(batch: Batch, parts: int) -> list[Batch]:
    """One shard per data-parallel rank, balanced by tokens; group statistics must be in the batch already."""
    return [batch] if parts == 1 else [batch.select(rows) for rows in shards(batch, parts)]


def shards(batch: Batch, parts: int) -> list[list[int]]:
    """The rows of each shard of `split`."""
    assert len(batch.lengths) >= parts, f"{len(batch.lengths)} sequences for {parts} ranks"
    return [sorted(rows) for rows in _balance(_longest_first(batch.lengths), batch.lengths, parts)]


def last_rows(batch: Batch) -> Batch:
    """The last row of each trajectory, with its last token repeated: the value there is that after the trajectory.

    Only for scoring.
    """
    owners: list[int] = batch.trajectory.numpy().tolist()
    ends = {owner: row for row, owner in enumerate(owners)}
    chosen = batch.select([ends[owner] for owner in range(len(batch.rewards))])
    pieces = [torch.cat([row, row[-1:]]) for row in torch.split(chosen.ids, list(chosen.lengths))]
    ids = torch.cat(pieces)
    return replace(
        chosen,
        ids=ids,
        lengths=tuple(len(piece) for piece in pieces),
        trained=torch.zeros_like(ids, dtype=torch.bool),
        sampler_logprobs=torch.zeros(len(ids)),
        versions=torch.full((len(ids),), -1, dtype=torch.int32),
        turn=torch.zeros_like(ids),
        **dict.fromkeys(_COMPUTED),
    )


@dataclass(slots=True)
class _BatchBuilder:
    """Collects the columns of a batch in one pass over the trajectories, which do not fit a CPU cache."""

    lengths: list[int] = field(default_factory=list[int])
    owners: list[int] = field(default_factory=list[int])
    """Up to here one entry per row; `owners` are trajectories."""
    group_of: dict[tuple[int, str], int] = field(default_factory=dict[tuple[int, str], int])
    groups: list[int] = field(default_factory=list[int])
    agents: list[str] = field(default_factory=list[str])
    truncated: list[bool] = field(default_factory=list[bool])
    domains: list[str] = field(default_factory=list[str])
    rewards: list[float] = field(default_factory=list[float])
    parts: list[dict[str, float]] = field(default_factory=list[dict[str, float]])
    """Up to here one entry per trajectory."""
    turns: list[Turn] = field(default_factory=list[Turn])
    turn_owners: list[int] = field(default_factory=list[int])
    turn_rewards: list[float] = field(default_factory=list[float])
    """One entry per turn; the score of a trajectory is part of its last turn's reward."""

    def add(self, group: tuple[int, str], trajectory: Trajectory) -> None:
        """Add the part of one agent in an attempt, in order."""
        task, status, score = trajectory.task, trajectory.status, trajectory.score
        assert status.valid, f"task {task.id!r}: a {status} trajectory in a group"
        assert trajectory.segments, f"task {task.id!r}: an attempt without a turn"
        owner, earned = len(self.groups), 0.0
        for segment in trajectory.segments:
            turns = segment.turns
            assert turns and len(turns[0].observation), "a segment begins with a sampled token: nothing scores it"
            length = 0
            for turn in turns:
                length += len(turn.observation) + len(turn.sampled)
                earned += turn.total_reward
                self.turn_owners.append(owner)
                self.turn_rewards.append(turn.reward)
            self.turns += turns
            self.lengths.append(length)
            self.owners.append(owner)
        if score is not None:
            earned = score.value + earned
            self.turn_rewards[-1] += score.value
        self.groups.append(self.group_of.setdefault(group, len(self.group_of)))
        self.agents.append(group[1])
        self.truncated.append(status is Status.TRUNCATED)
        self.domains.append(task.domain)
        self.rewards.append(earned)
        self.parts.append({} if score is None else score.parts)

    def batch(self) -> Batch:
        """The batch of all trajectories so far."""
        observed, sampled = [turn.observation for turn in self.turns], [turn.sampled for turn in self.turns]
        states = [turn.state for turn in self.turns]
        sizes = np.array([len(part) for part in _alternate(observed, sampled)], np.int64)
        longest = max(map(len, observed), default=0)
        number_of: dict[str, int] = {}
        state_numbers = [number_of.setdefault(state, len(number_of)) for state in states]
        names = dict.fromkeys(name for each in self.parts for name in each)
        no_version = torch.full((longest,), -1, dtype=torch.int32)
        return Batch(
            ids=_concatenate(_alternate(observed, sampled), torch.int64),
            trained=torch.as_tensor(np.repeat(np.arange(len(sizes)) % 2 == 1, sizes)),
            sampler_logprobs=_fill_observed(
                torch.zeros(longest), observed, [turn.sampler_logprobs for turn in self.turns]
            ),
            versions=_fill_observed(no_version, observed, [turn.versions for turn in self.turns]),
            lengths=tuple(self.lengths),
            trajectory=torch.tensor(self.owners, dtype=torch.int64),
            turn=torch.as_tensor(np.repeat(np.arange(len(sampled)), sizes[::2] + sizes[1::2])),
            group=torch.tensor(self.groups, dtype=torch.int64),
            rewards=_floats(self.rewards),
            truncated=torch.tensor(self.truncated, dtype=torch.bool),
            domains=tuple(self.domains),
            agents=tuple(self.agents),
            parts={name: _floats([each.get(name, math.nan) for each in self.parts]) for name in names},
            turn_trajectory=torch.tensor(self.turn_owners, dtype=torch.int64),
            turn_rewards=_floats(self.turn_rewards),
            turn_states=torch.tensor(state_numbers, dtype=torch.int64) if all(states) else None,
            span_rewards=self._span_rewards(sizes),
            experts=self._experts(),
        )

    def _experts(self) -> torch.Tensor | None:
        """The row of that name: -1 for turns without it."""
        shape = next((turn.experts.shape[1:] for turn in self.turns if turn.experts is not None), None)
        if shape is None:
            return None
        unknown = np.full((1, *shape), -1, np.int16)
        rows = [
            np.broadcast_to(unknown, (len(turn.observation) + len(turn.sampled), *shape))
            if turn.experts is None
            else turn.experts
            for turn in self.turns
        ]
        return torch.as_tensor(np.concatenate(rows))

    def _span_rewards(self, sizes: Any) -> torch.Tensor | None:
        """The row of that name; `sizes` are those of the observation and the response of each turn."""
        if not any(turn.span_rewards for turn in self.turns):
            return None
        row = torch.full((int(sizes.sum()),), math.nan)
        starts: list[int] = (np.cumsum(sizes) - sizes)[1::2].tolist()
        for turn, start in zip(self.turns, starts, strict=True):
            for index, value in turn.span_rewards:
                row[start + index] = value
        return row


def _floats(values: Sequence[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)


def _alternate(observed: Sequence[Any], sampled: Sequence[Any]) -> list[Any]:
    """Observation and response of each turn, in order."""
    return [part for pair in zip(observed, sampled, strict=True) for part in pair]


def _fill_observed(blank: torch.Tensor, observed: Sequence[Any], sampled: Sequence[Any]) -> torch.Tensor:
    """One flat row of values about sampled tokens, with those of `blank` on observed tokens."""
    empty = blank.numpy()
    return _concatenate(_alternate([empty[: len(row)] for row in observed], sampled), blank.dtype)


def _concatenate(rows: Sequence[Any], kind: torch.dtype) -> torch.Tensor:
    """All rows as one, in torch's memory: its allocator reuses that of the last step."""
    flat = torch.empty(sum(map(len, rows)), dtype=kind)
    if rows:
        np.concatenate(rows, out=flat.numpy(), casting="unsafe")
    return flat


def pack(
    lengths: Sequence[int], budget: int, *, multiple: int = 1, families: Sequence[int] | None = None
) -> list[list[int]]:
    """Few micro-batches of row indices, each with at most `budget` tokens and balanced; every row is in exactly one.

    Rows of similar length are together if that needs no further micro-batch, because attention pads within one. Their
    number is a multiple of `multiple`, so that as many data-parallel ranks get equally many; with too few rows the last
    ones are empty. With `families`, a number per row, rows of one family are together instead, even if that needs one
    more. The result is a pure function of the arguments.
    """
    longest = max(lengths, default=0)
    assert longest <= budget, f"a row of {longest} tokens exceeds the micro-batch budget of {budget}"
    order = _longest_first(lengths)
    fewest = _first_fit(order, lengths, budget)
    size = -(-len(fewest) // multiple) * multiple
    if families is not None:
        by_family = sorted(range(len(lengths)), key=lambda row: (families[row], row))
        for num_bins in (size, size + multiple):
            if (packed := _neighbours(by_family, lengths, budget, num_bins)) is not None:
                return _split_to(packed, lengths, num_bins)
    packed = _neighbours(order, lengths, budget, size)
    if packed is None:
        balanced = _balance(order, lengths, size)
        fits = all(sum(lengths[row] for row in rows) <= budget for rows in balanced)
        packed = balanced if fits else fewest
    return _split_to(packed, lengths, size)


def _longest_first(lengths: Sequence[int]) -> list[int]:
    return sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))


def _first_fit(order: Sequence[int], lengths: Sequence[int], budget: int) -> list[list[int]]:
    """First-fit decreasing: at most 11/9 of the optimal number of bins, plus one."""
    bins: list[list[int]] = []
    room: list[int] = []
    for row in order:
        index = next((i for i, free in enumerate(room) if lengths[row] <= free), None)
        if index is None:
            index = len(bins)
            bins.append([])
            room.append(budget)
        bins[index].append(row)
        room[index] -= lengths[row]
    return bins


def _neighbours(order: Sequence[int], lengths: Sequence[int], budget: int, size: int) -> list[list[int]] | None:
    """The sorted rows in at most `size` runs with the smallest possible maximum; None if that exceeds the budget."""
    if len(_runs(order, lengths, budget)) > size:
        return None
    low, high = max((lengths[row] for row in order), default=0), budget
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if len(_runs(order, lengths, middle)) <= size else (middle + 1, high)
    return _runs(order, lengths, low)


def _runs(order: Sequence[int], lengths: Sequence[int], most: int) -> list[list[int]]:
    runs: list[list[int]] = []
    free = -1
    for row in order:
        if lengths[row] > free:
            runs.append([])
            free = most
        runs[-1].append(row)
        free -= lengths[row]
    return runs


def _balance(order: Sequence[int], lengths: Sequence[int], size: int) -> list[list[int]]:
    """Each row, in this order, in the emptiest of `size` bins."""
    bins: list[list[int]] = [[] for _ in range(size)]
    num_tokens = [0] * size
    for row in order:
        index = num_tokens.index(min(num_tokens))
        bins[index].append(row)
        num_tokens[index] += lengths[row]
    return bins


def _split_to(packed: list[list[int]], lengths: Sequence[int], size: int) -> list[list[int]]:
    """Exactly `size` bins: halves the fullest bin of several rows repeatedly, then adds empty bins."""
    bins = [list(rows) for rows in packed if rows]
    while len(bins) < size:
        index = max(
            range(len(bins)), key=lambda i: (len(bins[i]) > 1, sum(lengths[row] for row in bins[i])), default=None
        )
        if index is None or len(bins[index]) < 2:
            return bins + [[] for _ in range(size - len(bins))]
        rows = bins[index]
        bins[index : index + 1] = [rows[: len(rows) // 2], rows[len(rows) // 2 :]]
    return bins
