"""What a detector is: it takes the metrics of each step, and returns the state of a problem."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from roll.config.notices import NoticeKind

Metrics = Mapping[str, float]
"""Metrics of one step by name, those that are finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemState:
    """Whether a problem is there after a step. Between its two limits a problem has no state, and stays as it was."""

    metric: str
    """The metric that shows it."""
    present: bool
    text: str
    """The numbers, as a clause."""
    domain: str = ""


class Detector(Protocol):
    """Detects one kind of problem; pure, so that the same metrics give the same states after a restart."""

    kind: NoticeKind
    num_calm: int
    """Observations in a row without the problem after which it is over."""

    def observe(self, step: int, metrics: Metrics) -> Iterable[ProblemState]:
        """Add the metrics of a step; at most one state per metric and domain."""
        ...


def named(metrics: Metrics, *names: str) -> dict[str, float]:
    """The metrics with these names, of the run and of each policy."""
    return {
        name: value
        for name, value in metrics.items()
        if name in names or (name.startswith("policy/") and name.endswith(tuple(f"/{each}" for each in names)))
    }


def reward_error(metrics: Metrics, deviation: str, groups: str) -> float:
    """Standard error of the mean reward of a step; 0 if it is not known.

    Attempts at one task are alike, so that only the groups count.
    """
    num_groups = metrics.get(groups, 0.0)
    return metrics.get(deviation, 0.0) / math.sqrt(num_groups) if num_groups else 0.0


def sibling_metric(name: str, of: str, other: str) -> str:
    """The metric `other` of the policy that has the metric `name`, which is `of` for a run with one policy."""
    return name.removesuffix(of) + other
