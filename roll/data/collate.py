"""From trajectories to the flat rows that a step trains on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from roll.algorithms.aggregation import token_mean
from roll.types import Batch, Group, Segment, Status, Trajectory


def collate(groups: Sequence[Group]) -> Batch:
    """One batch of all segments, ordered by group id, sibling, agent and segment, whatever order they came in.

    An attempt with several agents becomes a trajectory for each of them, and its group a group for each, so that what
    one agent earned is held against what the same agent earned in other attempts. `group` counts these from 0.
    """
    attempts = [
        ((group.id, agent), own)
        for group in sorted(groups, key=lambda group: group.id)
        for trajectory in sorted(group.trajectories, key=lambda trajectory: trajectory.sibling)
        for agent, own in trajectory.by_agent().items()
    ]
    for _, trajectory in attempts:
        assert trajectory.status.valid, f"task {trajectory.task.id!r}: a {trajectory.status} trajectory in a group"
    rows = [(owner, segment) for owner, (_, trajectory) in enumerate(attempts) for segment in trajectory.segments]
    trajectories = [trajectory for _, trajectory in attempts]
    number_of: dict[tuple[int, str], int] = {}
    numbers = [number_of.setdefault(group, len(number_of)) for group, _ in attempts]
    return replace(
        _rows([segment for _, segment in rows], [owner for owner, _ in rows]),
        group=torch.tensor(numbers, dtype=torch.int64),
        rewards=_floats([trajectory.reward for trajectory in trajectories]),
        truncated=torch.tensor(
            [trajectory.status is Status.TRUNCATED for trajectory in trajectories], dtype=torch.bool
        ),
        domains=tuple(trajectory.task.domain for trajectory in trajectories),
        agents=tuple(agent for (_, agent), _ in attempts),
        parts=_parts(trajectories),
        **_turns(trajectories),
    )


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


def _rows(segments: Sequence[Segment], owners: Sequence[int]) -> Batch:
    """The tokens of a batch; what is known of whole trajectories is still empty."""
    turns = [turn for segment in segments for turn in segment.turns]
    heard, said = [turn.observation for turn in turns], [turn.sampled for turn in turns]
    assert all(segment.turns and len(segment.turns[0].observation) for segment in segments), (
        "a segment begins with a sampled token: nothing scores it"
    )
    sizes = np.array([len(part) for part in _alternating(heard, said)], np.int64)
    longest = max(map(len, heard), default=0)
    nothing = torch.zeros(0)
    return Batch(
        ids=_flat(_alternating(heard, said), torch.int64),
        trained=torch.as_tensor(np.repeat(np.arange(len(sizes)) % 2 == 1, sizes)),
        sampler_logprobs=_after(torch.zeros(longest), heard, [turn.sampler_logprobs for turn in turns]),
        versions=_after(torch.full((longest,), -1, dtype=torch.int32), heard, [turn.versions for turn in turns]),
        lengths=tuple(
            sum([len(turn.observation) + len(turn.sampled) for turn in segment.turns]) for segment in segments
        ),
        trajectory=torch.tensor(owners, dtype=torch.int64),
        turn=torch.as_tensor(np.repeat(np.arange(len(turns)), sizes[::2] + sizes[1::2])),
        group=nothing,
        rewards=nothing,
        truncated=nothing,
        turn_trajectory=nothing,
        turn_rewards=nothing,
    )


def _turns(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """What is known of turns, counted over all trajectories; an outcome is part of the last one."""
    owners: list[int] = []
    rewards: list[float] = []
    states: list[str] = []
    for owner, trajectory in enumerate(trajectories):
        assert trajectory.turns, f"task {trajectory.task.id!r}: an attempt without a turn"
        for turn in trajectory.turns:
            owners.append(owner)
            rewards.append(turn.reward)
            states.append(turn.state)
        if trajectory.score is not None:
            rewards[-1] += trajectory.score.value
    number_of: dict[str, int] = {}
    numbers = [number_of.setdefault(state, len(number_of)) for state in states]
    return {
        "turn_trajectory": torch.tensor(owners, dtype=torch.int64),
        "turn_rewards": _floats(rewards),
        "turn_states": torch.tensor(numbers, dtype=torch.int64) if all(states) else None,
    }


def _parts(trajectories: Sequence[Trajectory]) -> dict[str, torch.Tensor]:
    scores = [{} if trajectory.score is None else trajectory.score.parts for trajectory in trajectories]
    names = dict.fromkeys(name for parts in scores for name in parts)
    return {name: _floats([parts.get(name, float("nan")) for parts in scores]) for name in names}


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
