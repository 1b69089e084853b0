"""From trajectories to the flat rows that a step trains on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

import numpy as np
import torch

from roll.algorithms.aggregation import token_mean
from roll.types import Batch, Group, Status, Trajectory, Turn


def collate(groups: Sequence[Group]) -> Batch:
    """One batch of all segments, ordered by group id, sibling, agent and segment, whatever order they came in.

    An attempt with several agents becomes a trajectory for each of them, and its group a group for each, so that what
    one agent earned is held against what the same agent earned in other attempts. `group` counts these from 0.
    """
    gathered = _Gathered()
    for group in sorted(groups, key=_group_id):
        for trajectory in sorted(group.trajectories, key=_sibling):
            for agent, own in trajectory.by_agent().items():
                gathered.add((group.id, agent), own)
    return gathered.batch()


_group_id, _sibling = attrgetter("id"), attrgetter("sibling")


def supervised(rows: Sequence[Sequence[Sequence[int]]]) -> Batch:
    """A batch of answers to learn by heart: advantages one, weights the mean over answer tokens.

    A row is a prompt and its answer, after which another prompt and answer may follow, and so on.
    """
    size = len(rows)
    lengths = tuple(sum(map(len, row)) for row in rows)
    assert all(row and len(row) % 2 == 0 and all(map(len, row)) for row in rows), "a row needs a prompt and an answer"
    ids = [token for row in rows for part in row for token in part]
    trained = [place % 2 == 1 for row in rows for place, part in enumerate(row) for _ in part]
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
    """One shard for each data-parallel rank, alike in tokens; group statistics must be in the batch already."""
    return [batch] if parts == 1 else [batch.select(rows) for rows in shards(batch, parts)]


def shards(batch: Batch, parts: int) -> list[list[int]]:
    """The rows of each shard that `split` makes."""
    assert len(batch.lengths) >= parts, f"{len(batch.lengths)} sequences for {parts} ranks"
    found: list[list[int]] = [[] for _ in range(parts)]
    filled = [0] * parts
    for row in sorted(range(len(batch.lengths)), key=lambda row: (-batch.lengths[row], row)):
        place = filled.index(min(filled))
        found[place].append(row)
        filled[place] += batch.lengths[row]
    return [sorted(rows) for rows in found]


def last_rows(batch: Batch) -> Batch:
    """The last row of each trajectory with one token more, whose value is that of the whole; only to be scored."""
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
        penalties=None,
        old_logprobs=None,
        ref_logprobs=None,
        teacher_logprobs=None,
        values=None,
        advantages=None,
        returns=None,
        weights=None,
    )


@dataclass(slots=True)
class _Gathered:
    """What a batch is made of, from one look at each trajectory: there are too many for a cache to hold."""

    lengths: list[int] = field(default_factory=list[int])
    owners: list[int] = field(default_factory=list[int])
    """Of rows."""
    group_of: dict[tuple[int, str], int] = field(default_factory=dict[tuple[int, str], int])
    groups: list[int] = field(default_factory=list[int])
    agents: list[str] = field(default_factory=list[str])
    truncated: list[bool] = field(default_factory=list[bool])
    domains: list[str] = field(default_factory=list[str])
    rewards: list[float] = field(default_factory=list[float])
    parts: list[dict[str, float]] = field(default_factory=list[dict[str, float]])
    """Of trajectories."""
    turns: list[Turn] = field(default_factory=list[Turn])
    turn_owners: list[int] = field(default_factory=list[int])
    turn_rewards: list[float] = field(default_factory=list[float])
    """Of turns; an outcome is part of the last one."""

    def add(self, group: tuple[int, str], trajectory: Trajectory) -> None:
        """An agent's part in an attempt, the next one in order."""
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
                earned += turn.reward
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
        """All of it, as rows of one number a token, a turn, a trajectory."""
        heard, said = [turn.observation for turn in self.turns], [turn.sampled for turn in self.turns]
        states = [turn.state for turn in self.turns]
        sizes = np.array([len(part) for part in _alternating(heard, said)], np.int64)
        longest = max(map(len, heard), default=0)
        number_of: dict[str, int] = {}
        places = [number_of.setdefault(state, len(number_of)) for state in states]
        names = dict.fromkeys(name for each in self.parts for name in each)
        return Batch(
            ids=_flat(_alternating(heard, said), torch.int64),
            trained=torch.as_tensor(np.repeat(np.arange(len(sizes)) % 2 == 1, sizes)),
            sampler_logprobs=_after(torch.zeros(longest), heard, [turn.sampler_logprobs for turn in self.turns]),
            versions=_after(
                torch.full((longest,), -1, dtype=torch.int32), heard, [turn.versions for turn in self.turns]
            ),
            lengths=tuple(self.lengths),
            trajectory=torch.tensor(self.owners, dtype=torch.int64),
            turn=torch.as_tensor(np.repeat(np.arange(len(said)), sizes[::2] + sizes[1::2])),
            group=torch.tensor(self.groups, dtype=torch.int64),
            rewards=_floats(self.rewards),
            truncated=torch.tensor(self.truncated, dtype=torch.bool),
            domains=tuple(self.domains),
            agents=tuple(self.agents),
            parts={name: _floats([each.get(name, math.nan) for each in self.parts]) for name in names},
            turn_trajectory=torch.tensor(self.turn_owners, dtype=torch.int64),
            turn_rewards=_floats(self.turn_rewards),
            turn_states=torch.tensor(places, dtype=torch.int64) if all(states) else None,
        )


def _floats(values: Sequence[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)


def _alternating(heard: Sequence[Any], said: Sequence[Any]) -> list[Any]:
    """What was heard and what was said to it, turn by turn."""
    return [part for pair in zip(heard, said, strict=True) for part in pair]


def _after(blank: torch.Tensor, heard: Sequence[Any], said: Sequence[Any]) -> torch.Tensor:
    """One flat row about what was said, with pieces of a blank one for what was heard."""
    empty = blank.numpy()
    return _flat(_alternating([empty[: len(row)] for row in heard], said), blank.dtype)


def _flat(rows: Sequence[Any], kind: torch.dtype) -> torch.Tensor:
    """Rows end to end, in memory of torch's: its allocator has that of the last step at hand."""
    found = torch.empty(sum(map(len, rows)), dtype=kind)
    if rows:
        np.concatenate(rows, out=found.numpy(), casting="unsafe")
    return found
