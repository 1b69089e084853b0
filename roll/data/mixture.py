"""Which task comes next: several sources by share, each shuffled anew every time it is through.

The sequence is a pure function of the seed and the sources, so its state is a few counters.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from roll.errors import ConfigError
from roll.types import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """One task, drawn."""

    task: Task
    source: str
    """The name of the source it came from."""
    attempt: int
    """How often this task was drawn before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One source of a mixture."""

    name: str
    tasks: Sequence[Task]
    share: float = 1.0
    """Relative to the other parts."""


class Mixture:
    """An endless sequence of tasks from several sources.

    After any number of draws every source has had its share of them to within one. No task of a source is drawn again
    before all of its others were.
    """

    def __init__(self, parts: Sequence[Part], *, seed: int) -> None:
        assert parts and all(part.tasks and part.share > 0 for part in parts), "every source needs tasks and a share"
        total = sum(Fraction(str(part.share)) for part in parts)  # by decimals: 0.1 is a tenth, and nothing drifts
        self._parts = tuple(parts)
        self._shares = [Fraction(str(part.share)) / total for part in parts]
        self._seed = seed
        self._drawn = [0] * len(parts)
        self._orders: dict[int, tuple[int, np.ndarray[Any, Any]]] = {}

    def draw(self) -> Draw:
        """The next task."""
        chosen = self._next_part()
        part = self._parts[chosen]
        epoch, position = divmod(self._drawn[chosen], len(part.tasks))
        self._drawn[chosen] += 1
        return Draw(task=part.tasks[int(self._order(chosen, epoch)[position])], source=part.name, attempt=epoch)

    def state(self) -> dict[str, Any]:
        """Where the sequence stands, for `restore`; JSON can hold it."""
        return {
            part.name: {"drawn": drawn, "tasks": len(part.tasks)}
            for part, drawn in zip(self._parts, self._drawn, strict=True)
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where the mixture that gave `state` stood; it must have had the same sources."""
        ours = {part.name: len(part.tasks) for part in self._parts}
        theirs = {name: entry["tasks"] for name, entry in state.items()}
        if ours != theirs:
            raise ConfigError(
                f"tasks: not those of the checkpoint (got {ours}, it had {theirs}); resume with the same data"
            )
        self._drawn = [int(state[part.name]["drawn"]) for part in self._parts]

    def _next_part(self) -> int:
        """Of the sources that are behind their share, the one whose next draw is due first.

        Drawing the one that is furthest behind instead strays by more than one where shares are very unequal.
        """
        num_draws = sum(self._drawn) + 1
        behind = [i for i, share in enumerate(self._shares) if self._drawn[i] < share * num_draws]
        return min(behind, key=lambda i: (self._drawn[i] + 1) / self._shares[i])

    def _order(self, chosen: int, epoch: int) -> np.ndarray[Any, Any]:
        known = self._orders.get(chosen)
        if known is None or known[0] != epoch:
            part = self._parts[chosen]
            key = hashlib.blake2b(f"{self._seed}/{part.name}/{epoch}".encode(), digest_size=16).digest()
            order = np.random.Generator(np.random.PCG64(int.from_bytes(key, "big"))).permutation(len(part.tasks))
            known = self._orders[chosen] = (epoch, order)
        return known[1]
