"""What a step's groups looked like, as metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from roll.journal.packing import version_runs
from roll.types import Group, Status, Trajectory


def describe(groups: Sequence[Group], *, step: int, step_of: Mapping[int, int]) -> dict[str, float]:
    """Rewards, lengths and ages of what `step` trains on; a token's age is in steps since its weights were new."""
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    rewards = np.array([trajectory.reward for trajectory in trajectories])
    lengths = np.array([trajectory.num_sampled for trajectory in trajectories])
    ages = _ages(trajectories, step, step_of)
    num_tokens = sum(ages.values())
    return {
        "reward/mean": float(rewards.mean()),
        "reward/std": float(rewards.std()),
        "length/mean": float(lengths.mean()),
        "length/max": float(lengths.max()),
        "length/truncated": float(np.mean([item.status is Status.TRUNCATED for item in trajectories])),
        "age/mean": sum(age * count for age, count in ages.items()) / num_tokens,
        "age/max": float(max(ages)),
        **{f"age/{age}": count / num_tokens for age, count in sorted(ages.items())},
        "tokens/generated": float(lengths.sum()),
        **_by_domain(trajectories, rewards.tolist()),
    }


def compare(trained: Sequence[Group], waiting: Sequence[Group]) -> dict[str, float]:
    """What is trained beside what is complete and waits, so that a choice by length, reward or domain is seen."""
    if not waiting:
        return {"waiting/groups": 0.0}
    found = {"waiting/groups": float(len(waiting))}
    sides = [[each for group in groups for each in group.trajectories] for groups in (trained, waiting)]
    measures: dict[str, Callable[[Trajectory], float]] = {
        "length": lambda each: float(each.num_sampled),
        "reward": lambda each: each.reward,
        **{f"share/{name}": _is_of(name) for name in sorted({each.task.domain for side in sides for each in side})},
    }
    for name, measure in measures.items():
        ours, theirs = (float(np.mean([measure(each) for each in side])) for side in sides)
        found |= {f"waiting/{name}": theirs, f"bias/{name}": ours - theirs}
    return found


def _is_of(domain: str) -> Callable[[Trajectory], float]:
    return lambda each: float(each.task.domain == domain)


def _ages(trajectories: Sequence[Trajectory], step: int, step_of: Mapping[int, int]) -> dict[int, int]:
    """How many tokens have each age."""
    sampled: dict[int, int] = {}
    for trajectory in trajectories:
        for segment in trajectory.segments:
            for turn in segment.turns:
                for version, num_tokens in version_runs(turn.versions):
                    sampled[version] = sampled.get(version, 0) + num_tokens
    found: Counter[int] = Counter()
    for version, num_tokens in sampled.items():
        found[step - 1 - step_of[version]] += num_tokens
    return found


def _by_domain(trajectories: Sequence[Trajectory], rewards: Sequence[float]) -> dict[str, float]:
    """Means of rewards, those of several agents also by agent, of their parts, and of what environments counted."""
    values: dict[str, list[float]] = {}
    for trajectory, reward in zip(trajectories, rewards, strict=True):
        domain = trajectory.task.domain
        agents = trajectory.by_agent() if len(trajectory.segments) > 1 else {}
        values.setdefault(f"reward/{domain}", []).append(reward)
        for agent, own in agents.items() if len(agents) > 1 else ():
            values.setdefault(f"reward/{domain}/{agent}", []).append(own.reward)
        for name, value in (trajectory.score.parts if trajectory.score else {}).items():
            values.setdefault(f"reward_part/{name}", []).append(value)
        for name, value in trajectory.metrics.items():
            values.setdefault(f"env/{domain}/{name}", []).append(value)
    return {name: float(np.mean(found)) for name, found in values.items()}
