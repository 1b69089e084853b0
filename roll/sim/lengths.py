"""How long replies and waits are: a pure function of a key, so that a run repeated has the same ones."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from roll.journal.store import Reader


class Lengths(Protocol):
    """A distribution of positive numbers."""

    def draw(self, key: int) -> float:
        """The number that belongs to `key`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LogNormal:
    """Most are short, some are very long; nothing is cut off."""

    median: float
    sigma: float

    @property
    def mean(self) -> float:
        return self.median * math.exp(self.sigma**2 / 2)

    def draw(self, key: int) -> float:
        return random.Random(key).lognormvariate(math.log(self.median), self.sigma)


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """Always the same."""

    value: float

    def draw(self, key: int) -> float:
        return self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """Lengths that were seen, each as likely as it was frequent."""

    seen: Sequence[float]

    def draw(self, key: int) -> float:
        return self.seen[random.Random(key).randrange(len(self.seen))]


def recorded(journal: Path) -> Recorded:
    """The lengths of all replies in the journal of a run."""
    reader = Reader(journal)
    try:
        kept = [item.trajectory for item in reader.trajectories() if item.trajectory is not None]
    finally:
        reader.close()
    return Recorded(seen=[float(len(turn.sampled)) for trajectory in kept for turn in trajectory.turns])
