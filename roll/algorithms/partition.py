"""Selected trajectories of a batch as a batch, and the whole batch again from such parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from roll.algorithms.segments import siblings
from roll.types import Batch

_COMPUTED = ("trained", "old_logprobs", "entropies", "penalties", "advantages", "returns")
"""Per-token rows that scoring or credit computes or changes."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SubBatch:
    """A batch, and the positions of its entries in the batch that it was taken from."""

    batch: Batch
    trajectories: torch.Tensor | slice
    turns: torch.Tensor | slice
    tokens: torch.Tensor | slice


def take(batch: Batch, chosen: torch.Tensor) -> SubBatch:
    """The trajectories that are `chosen` ([trajectories] bool, at least one), numbered from 0."""
    chosen_turns = chosen[batch.turn_trajectory]
    trajectories, turns = _positions(chosen), _positions(chosen_turns)
    rows: list[int] = _positions(chosen[batch.trajectory]).numpy().tolist()
    selected, number, turn_number = batch.select(rows), _numbers(chosen), _numbers(chosen_turns)
    parts = {name: values[trajectories] for name, values in batch.parts.items()}
    renumbered = replace(
        selected,
        trajectory=number[selected.trajectory],
        group=siblings(batch.group[trajectories]),
        rewards=batch.rewards[trajectories],
        truncated=batch.truncated[trajectories],
        turn=turn_number[selected.turn],
        turn_trajectory=number[batch.turn_trajectory[turns]],
        turn_rewards=batch.turn_rewards[turns],
        turn_states=None if batch.turn_states is None else batch.turn_states[turns],
        domains=_select(batch.domains, trajectories),
        agents=_select(batch.agents, trajectories),
        parts={name: values for name, values in parts.items() if not bool(values.isnan().all())},
    )
    tokens = torch.as_tensor(batch.positions(rows))
    return SubBatch(batch=renumbered, trajectories=trajectories, turns=turns, tokens=tokens)


def join(batch: Batch, parts: Sequence[SubBatch]) -> Batch:
    """The batch that `parts` were taken from, with the scores and credit of each part."""
    rows = {
        name: _merge(batch.num_tokens, [(part.tokens, getattr(part.batch, name)) for part in parts])
        for name in _COMPUTED
        if getattr(parts[0].batch, name) is not None
    }
    return replace(
        batch,
        rewards=_merge(len(batch.rewards), [(part.trajectories, part.batch.rewards) for part in parts]),
        turn_rewards=_merge(len(batch.turn_rewards), [(part.turns, part.batch.turn_rewards) for part in parts]),
        **rows,
    )


def _merge(size: int, pieces: Sequence[tuple[torch.Tensor | slice, torch.Tensor]]) -> torch.Tensor:
    """Values written to their positions."""
    merged = torch.zeros(size, dtype=pieces[0][1].dtype)
    for positions, values in pieces:
        merged[positions] = values
    return merged


def _select(names: Sequence[str], trajectories: torch.Tensor) -> tuple[str, ...]:
    """Names of the chosen trajectories; empty where the batch has none."""
    indices: list[int] = trajectories.numpy().tolist()
    return tuple(names[index] for index in indices) if names else ()


def _positions(chosen: torch.Tensor) -> torch.Tensor:
    return chosen.nonzero().squeeze(1)


def _numbers(chosen: torch.Tensor) -> torch.Tensor:
    """The index of each chosen entry among the chosen ones."""
    return chosen.long().cumsum(0) - 1
