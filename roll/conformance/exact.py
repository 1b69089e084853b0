"""`Tokens` and `Batch` once more, in float64 NumPy: what the oracle computes with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from roll.types import Batch, Tokens

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]
Numbers: TypeAlias = NDArray[np.complex128] | Floats
"""Real, or with a tiny imaginary part that carries a derivative along."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExactTokens:
    """What an oracle loss sees. A stop-gradient reads `frozen_logprobs`; everything else reads `logprobs`."""

    logprobs: Numbers
    frozen_logprobs: Floats
    """The same numbers, as constants."""
    old_logprobs: Floats
    sampler_logprobs: Floats
    advantages: Floats
    trained: Bools
    row: Ints
    turn: Ints
    ref_logprobs: Floats | None = None
    values: Numbers | None = None
    old_values: Floats | None = None
    returns: Floats | None = None
    entropies: Numbers | None = None

    @property
    def places(self) -> list[int]:
        """Where the trained tokens stand, in order."""
        return np.flatnonzero(self.trained).tolist()

    @property
    def rows(self) -> dict[int, list[int]]:
        """The places of the trained tokens of each sequence that has any."""
        return self._places_by(self.row)

    @property
    def turns(self) -> dict[int, list[int]]:
        """The places of the trained tokens of each turn that has any."""
        return self._places_by(self.turn)

    def _places_by(self, index: Ints) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for place in self.places:
            found.setdefault(int(index[place]), []).append(place)
        return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExactBatch:
    """What an oracle advantage, aggregation or shaping sees; the fields mean what they mean in `Batch`."""

    trained: Bools
    lengths: tuple[int, ...]
    trajectory: Ints
    group: Ints
    rewards: Floats
    truncated: Bools
    turn: Ints
    turn_trajectory: Ints
    turn_rewards: Floats
    sampler_logprobs: Floats
    turn_states: Ints | None = None
    penalties: Floats | None = None
    old_logprobs: Floats | None = None
    teacher_logprobs: Floats | None = None
    values: Floats | None = None
    parts: Mapping[str, Floats] = field(default_factory=lambda: {})

    @property
    def row_places(self) -> list[list[int]]:
        """The places of the trained tokens of each row, also of rows that have none."""
        ends = np.cumsum(self.lengths).tolist()
        return [
            [place for place in range(end - length, end) if self.trained[place]]
            for end, length in zip(ends, self.lengths, strict=True)
        ]

    @property
    def places(self) -> list[list[int]]:
        """The places of the trained tokens of each trajectory, in order across its rows."""
        found: list[list[int]] = [[] for _ in self.rewards]
        for row, places in enumerate(self.row_places):
            found[int(self.trajectory[row])] += places
        return found

    @property
    def turns(self) -> list[list[int]]:
        """The turns of each trajectory, in order."""
        found: list[list[int]] = [[] for _ in self.rewards]
        for turn, owner in enumerate(self.turn_trajectory):
            found[int(owner)].append(turn)
        return found

    @property
    def siblings(self) -> list[list[int]]:
        """For each trajectory, all trajectories of its group, itself among them."""
        return [np.flatnonzero(self.group == own).tolist() for own in self.group]


def exact_tokens(tokens: Tokens) -> ExactTokens:
    """The same tokens in double precision."""
    names = ("old_logprobs", "sampler_logprobs", "advantages", "ref_logprobs")
    others = ("values", "old_values", "returns", "entropies")
    logprobs = numbers(tokens.logprobs)
    return ExactTokens(
        logprobs=logprobs,
        frozen_logprobs=logprobs,
        trained=_plain(tokens.trained),
        row=_plain(tokens.row),
        turn=_plain(tokens.turn),
        **{name: _maybe(getattr(tokens, name)) for name in (*names, *others)},
    )


def exact_batch(batch: Batch) -> ExactBatch:
    """The same batch in double precision."""
    whole = ("trained", "trajectory", "group", "truncated", "turn", "turn_trajectory")
    reals = ("rewards", "turn_rewards", "sampler_logprobs")
    optional = ("penalties", "old_logprobs", "teacher_logprobs", "values")
    return ExactBatch(
        lengths=batch.lengths,
        turn_states=None if batch.turn_states is None else _plain(batch.turn_states),
        parts={name: numbers(part) for name, part in batch.parts.items()},
        **{name: _plain(getattr(batch, name)) for name in whole},
        **{name: _maybe(getattr(batch, name)) for name in (*reals, *optional)},
    )


def numbers(tensor: torch.Tensor) -> Floats:
    """In double precision, whatever device and graph it was part of."""
    return tensor.detach().cpu().double().numpy()


def _maybe(tensor: torch.Tensor | None) -> Any:
    return None if tensor is None else numbers(tensor)


def _plain(tensor: torch.Tensor) -> Any:
    return tensor.detach().cpu().numpy()
