"""Some trajectories of a batch as a batch of their own, and the whole again from all such parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from roll.algorithms.segments import siblings
from roll.types import Batch

_MADE = ("trained", "old_logprobs", "penalties", "advantages", "returns")
"""Per-token rows that scoring or credit makes or changes."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Part:
    """A batch, and where its entries stand in the one that it was cut from."""

    batch: Batch
    trajectories: torch.Tensor
    turns: torch.Tensor
    tokens: torch.Tensor


def parted(batch: Batch, chosen: torch.Tensor) -> Part:
    """The trajectories that are `chosen` ([trajectories] bool), one at least, numbered as if there were no others."""
    of_turns = chosen[batch.turn_trajectory]
    trajectories, turns = _places(chosen), _places(of_turns)
    rows: list[int] = _places(chosen[batch.trajectory]).numpy().tolist()
    cut, number, number_of_turn = batch.select(rows), _numbers(chosen), _numbers(of_turns)
    parts = {name: found[trajectories] for name, found in batch.parts.items()}
    own = replace(
        cut,
        trajectory=number[cut.trajectory],
        group=siblings(batch.group[trajectories]),
        rewards=batch.rewards[trajectories],
        truncated=batch.truncated[trajectories],
        turn=number_of_turn[cut.turn],
        turn_trajectory=number[batch.turn_trajectory[turns]],
        turn_rewards=batch.turn_rewards[turns],
        turn_states=None if batch.turn_states is None else batch.turn_states[turns],
        domains=_named(batch.domains, trajectories),
        agents=_named(batch.agents, trajectories),
        parts={name: found for name, found in parts.items() if not bool(found.isnan().all())},
    )
    tokens = torch.as_tensor(batch.places(rows))
    return Part(batch=own, trajectories=trajectories, turns=turns, tokens=tokens)


def joined(batch: Batch, parts: Sequence[Part]) -> Batch:
    """The batch that was cut into `parts`, with the scores and the credit that each of them was given."""
    rows = {
        name: _laid(batch.num_tokens, [(part.tokens, getattr(part.batch, name)) for part in parts])
        for name in _MADE
        if getattr(parts[0].batch, name) is not None
    }
    return replace(
        batch,
        rewards=_laid(len(batch.rewards), [(part.trajectories, part.batch.rewards) for part in parts]),
        turn_rewards=_laid(len(batch.turn_rewards), [(part.turns, part.batch.turn_rewards) for part in parts]),
        **rows,
    )


def _laid(size: int, pieces: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    found = torch.zeros(size, dtype=pieces[0][1].dtype)
    for places, values in pieces:
        found[places] = values
    return found


def _named(names: Sequence[str], trajectories: torch.Tensor) -> tuple[str, ...]:
    """Those of the chosen trajectories, where names are told at all."""
    places: list[int] = trajectories.numpy().tolist()
    return tuple(names[place] for place in places) if names else ()


def _places(chosen: torch.Tensor) -> torch.Tensor:
    return chosen.nonzero().squeeze(1)


def _numbers(chosen: torch.Tensor) -> torch.Tensor:
    """The number that each chosen entry has among the chosen."""
    return chosen.long().cumsum(0) - 1
