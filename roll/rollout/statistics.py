"""What a step's groups looked like, as metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from roll.types import Group, Status, Trajectory


def describe(groups: Sequence[Group], *, step: int, step_of: Mapping[int, int]) -> dict[str, float]:
    """Rewards, lengths and ages of what `step` trains on; a token's age is in steps since its weights were new."""
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    rewards = np.array([trajectory.reward for trajectory in trajectories])
    lengths = np.array([trajectory.num_sampled for trajectory in trajectories])
    versions = np.concatenate([turn.versions for trajectory in trajectories for turn in trajectory.turns])
    ages = step - 1 - np.array([step_of[version] for version in versions.tolist()])
    return {
        "reward/mean": float(rewards.mean()),
        "reward/std": float(rewards.std()),
        "length/mean": float(lengths.mean()),
        "length/max": float(lengths.max()),
        "length/truncated": float(np.mean([item.status is Status.TRUNCATED for item in trajectories])),
        "age/mean": float(ages.mean()),
        "age/max": float(ages.max()),
        "tokens/generated": float(lengths.sum()),
        **_by_domain(trajectories),
    }


def _by_domain(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Means of rewards, of their parts, and of what environments counted."""
    values: dict[str, list[float]] = {}
    for trajectory in trajectories:
        values.setdefault(f"reward/{trajectory.task.domain}", []).append(trajectory.reward)
        for name, value in (trajectory.score.parts if trajectory.score else {}).items():
            values.setdefault(f"reward_part/{name}", []).append(value)
        for name, value in trajectory.metrics.items():
            values.setdefault(f"env/{trajectory.task.domain}/{name}", []).append(value)
    return {name: float(np.mean(found)) for name, found in values.items()}
