"""Lengths of responses and waits: pure functions of a key, so that a repeated run draws the same ones."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class Lengths(Protocol):
    """A distribution of positive numbers."""

    def draw(self, key: int) -> float:
        """The number that belongs to `key`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LogNormal:
    """Mostly short, with a long tail; not truncated."""

    median: float
    sigma: float

    @property
    def mean(self) -> float:
        return self.median * math.exp(self.sigma**2 / 2)

    def draw(self, key: int) -> float:
        return random.Random(key).lognormvariate(math.log(self.median), self.sigma)


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """A constant."""

    value: float

    def draw(self, key: int) -> float:
        return self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedLengths:
    """The empirical distribution of observed lengths."""

    observed: Sequence[float]

    def draw(self, key: int) -> float:
        return self.observed[random.Random(key).randrange(len(self.observed))]
