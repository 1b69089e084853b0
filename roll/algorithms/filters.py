"""Filters that keep groups out of a batch: `f(group, **kwargs) -> str`, the reason to drop it or an empty string."""

from __future__ import annotations

import statistics

import numpy as np

from roll.types import Group


def mixed(group: Group) -> str:
    """Keeps groups whose rewards differ in single precision, as a batch stores them; equal rewards have no gradient.

    With several agents, the rewards of one agent have to differ.
    """
    rewards: dict[str, list[float]] = {}
    for trajectory in group.trajectories:
        for agent, part in trajectory.by_agent().items():
            rewards.setdefault(agent, []).append(part.reward)
    differ = any(len(np.unique(np.array(values, np.float32))) > 1 for values in rewards.values())
    return "" if differ else "all rewards are equal"


def mean_between(group: Group, *, low: float = 0.0, high: float = 1.0) -> str:
    """Keeps groups whose mean reward is above `low` and below `high`."""
    mean = statistics.fmean(trajectory.reward for trajectory in group.trajectories)
    return "" if low < mean < high else f"mean reward {mean:g} is not between {low:g} and {high:g}"
