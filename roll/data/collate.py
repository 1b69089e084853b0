"""From trajectories to the flat rows that a step trains on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from roll.algorithms.aggregation import token_mean
from roll.types import Batch, Group, Segment


def collate(groups: Sequence[Group]) -> Batch:
    """One batch of all segments, ordered by group id, sibling and segment, whatever order they came in.

    `group` counts the groups of this batch from 0, in the order of their ids.
    """
    attempts = [
        (index, trajectory)
        for index, group in enumerate(sorted(groups, key=lambda group: group.id))
        for trajectory in sorted(group.trajectories, key=lambda trajectory: trajectory.sibling)
    ]
    for _, trajectory in attempts:
        assert trajectory.status.valid, f"task {trajectory.task.id!r}: a {trajectory.status} trajectory in a group"
    rows = [(owner, segment) for owner, (_, trajectory) in enumerate(attempts) for segment in trajectory.segments]
    return _batch(
        [segment for _, segment in rows],
        trajectory=[owner for owner, _ in rows],
        group=[index for index, _ in attempts],
        rewards=[trajectory.reward for _, trajectory in attempts],
    )


def supervised(pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Batch:
    """A batch of prompts with their answers to learn by heart: advantages one, weights the mean over answer tokens."""
    size = len(pairs)
    lengths = tuple(len(prompt) + len(answer) for prompt, answer in pairs)
    assert all(len(prompt) and len(answer) for prompt, answer in pairs), "a pair needs a prompt and an answer"
    ids = [token for prompt, answer in pairs for token in (*prompt, *answer)]
    trained = [part for prompt, answer in pairs for part in (*[False] * len(prompt), *[True] * len(answer))]
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
        advantages=mask.float(),
    )
    return replace(batch, weights=token_mean(batch))


def split(batch: Batch, parts: int) -> list[Batch]:
    """One shard for each data-parallel rank, alike in tokens; group statistics must be in the batch already."""
    if parts == 1:
        return [batch]
    assert len(batch.lengths) >= parts, f"{len(batch.lengths)} sequences for {parts} ranks"
    shards: list[list[int]] = [[] for _ in range(parts)]
    filled = [0] * parts
    for row in sorted(range(len(batch.lengths)), key=lambda row: (-batch.lengths[row], row)):
        place = filled.index(min(filled))
        shards[place].append(row)
        filled[place] += batch.lengths[row]
    return [batch.select(sorted(rows)) for rows in shards]


def _batch(
    segments: Sequence[Segment], *, trajectory: Sequence[int], group: Sequence[int], rewards: Sequence[float]
) -> Batch:
    ids = [segment.ids for segment in segments]
    trained = [segment.trained for segment in segments]
    assert all(len(mask) and not mask[0] for mask in trained), (
        "a segment begins with a sampled token: nothing scores it"
    )
    return Batch(
        ids=torch.as_tensor(_flat(ids, np.int64)),
        trained=torch.as_tensor(_flat(trained, np.bool_)),
        sampler_logprobs=torch.as_tensor(_flat([segment.sampler_logprobs for segment in segments], np.float32)),
        versions=torch.as_tensor(_flat([segment.versions for segment in segments], np.int32)),
        lengths=tuple(len(row) for row in ids),
        trajectory=torch.tensor(trajectory, dtype=torch.int64),
        group=torch.tensor(group, dtype=torch.int64),
        rewards=torch.tensor(rewards, dtype=torch.float32),
    )


def _flat(rows: Sequence[Any], kind: Any) -> Any:
    return np.concatenate(rows).astype(kind) if rows else np.zeros(0, kind)
