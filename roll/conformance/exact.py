"""`Tokens` and `Batch` in float64 NumPy, for the oracle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray

from roll.types import Batch, Tokens

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]
Numbers: TypeAlias = NDArray[np.complex128] | Floats
"""Real, or with a tiny imaginary part that carries a derivative."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExactTokens:
    """Inputs of an oracle loss. Terms without a gradient read `frozen_logprobs`; all others read `logprobs`."""

    logprobs: Numbers
    frozen_logprobs: Floats
    """The same values, as constants."""
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
    def positions(self) -> list[int]:
        """Positions of the trained tokens, in order."""
        return np.flatnonzero(self.trained).tolist()

    @property
    def rows(self) -> dict[int, list[int]]:
        """Positions of the trained tokens of each sequence that has any."""
        return self._positions_by(self.row)

    @property
    def turns(self) -> dict[int, list[int]]:
        """Positions of the trained tokens of each turn that has any."""
        return self._positions_by(self.turn)

    def _positions_by(self, index: Ints) -> dict[int, list[int]]:
        by_index: dict[int, list[int]] = {}
        for position in self.positions:
            by_index.setdefault(int(index[position]), []).append(position)
        return by_index


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExactBatch:
    """Inputs of an oracle advantage, aggregation or shaping; fields are those of `Batch`."""

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
    span_rewards: Floats | None = None
    penalties: Floats | None = None
    old_logprobs: Floats | None = None
    teacher_logprobs: Floats | None = None
    values: Floats | None = None
    parts: Mapping[str, Floats] = field(default_factory=lambda: {})

    @property
    def row_positions(self) -> list[list[int]]:
        """Positions of the trained tokens of each row, including rows without any."""
        ends = np.cumsum(self.lengths).tolist()
        return [
            [position for position in range(end - length, end) if self.trained[position]]
            for end, length in zip(ends, self.lengths, strict=True)
        ]

    @property
    def positions(self) -> list[list[int]]:
        """Positions of the trained tokens of each trajectory, in order across its rows."""
        result: list[list[int]] = [[] for _ in self.rewards]
        for row, positions in enumerate(self.row_positions):
            result[int(self.trajectory[row])] += positions
        return result

    @property
    def turns(self) -> list[list[int]]:
        """The turns of each trajectory, in order."""
        result: list[list[int]] = [[] for _ in self.rewards]
        for turn, owner in enumerate(self.turn_trajectory):
            result[int(owner)].append(turn)
        return result

    @property
    def siblings(self) -> list[list[int]]:
        """For each trajectory, all trajectories of its group, including itself."""
        return [np.flatnonzero(self.group == group).tolist() for group in self.group]


def exact_tokens(tokens: Tokens) -> ExactTokens:
    """The same tokens in double precision."""
    names = {each.name for each in fields(ExactTokens)} - {"frozen_logprobs"}
    return ExactTokens(
        frozen_logprobs=numbers(tokens.logprobs), **{name: _exact(getattr(tokens, name)) for name in names}
    )


def exact_batch(batch: Batch) -> ExactBatch:
    """The same batch in double precision."""
    return ExactBatch(**{each.name: _exact(getattr(batch, each.name)) for each in fields(ExactBatch)})


def numbers(tensor: torch.Tensor) -> Floats:
    """The tensor in double precision on the CPU, without its graph."""
    return tensor.detach().cpu().double().numpy()


def _exact(value: Any) -> Any:
    """The value of a field; floating point tensors are in double precision, other tensors keep their type."""
    if isinstance(value, torch.Tensor):
        return numbers(value) if value.is_floating_point() else value.detach().cpu().numpy()
    if isinstance(value, dict):
        return {name: _exact(part) for name, part in cast("dict[str, torch.Tensor]", value).items()}
    return value
