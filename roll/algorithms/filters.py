"""Why a group is not worth a place in a batch: `f(group, **kwargs) -> str`, empty to keep it."""

from __future__ import annotations

import statistics

import numpy as np

from roll.types import Group


def mixed(group: Group) -> str:
    """Keeps groups whose rewards differ in single precision, as a batch holds them: others teach nothing.

    Of several agents one whose rewards differ is enough.
    """
    rewards: dict[str, list[float]] = {}
    for trajectory in group.trajectories:
        for agent, own in trajectory.by_agent().items():
            rewards.setdefault(agent, []).append(own.reward)
    differing = any(len(np.unique(np.array(found, np.float32))) > 1 for found in rewards.values())
    return "" if differing else "all rewards are equal"


def mean_between(group: Group, *, low: float = 0.0, high: float = 1.0) -> str:
    """Keeps groups whose mean reward is above `low` and below `high`."""
    mean = statistics.fmean(trajectory.reward for trajectory in group.trajectories)
    return "" if low < mean < high else f"mean reward {mean:g} is not between {low:g} and {high:g}"
