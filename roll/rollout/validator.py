"""Held-out tasks, attempted once each with one version of the weights."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from roll.rollout.episode import Attempt, EpisodeRunner
from roll.rollout.source import Source
from roll.types import Task, Trajectory

_UNDER_WAY = 256
"""Attempts that may wait on the router at once; keeps memory bounded on large sets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Validator:
    """Plays every task of its sources. Whoever calls it publishes nothing until it is through."""

    sources: Sequence[Source]
    runner: EpisodeRunner
    seed: int

    @property
    def num_tasks(self) -> int:
        return sum(len(source.tasks) for source in self.sources)

    async def run(self, advance: Callable[[int], None]) -> dict[str, list[Trajectory]]:
        """Trajectories by source, in the order of its tasks; `advance` hears of each as it ends."""
        limit = asyncio.Semaphore(_UNDER_WAY)

        async def attempt(source: Source, task: Task) -> Trajectory:
            numbered = Attempt(task=task, sibling=0, number=0, purpose="validate", seed=self.seed)
            async with limit:
                found = await source.attempt(self.runner, numbered)
            advance(1)
            return found

        return {
            source.name: list(await asyncio.gather(*(attempt(source, task) for task in source.tasks)))
            for source in self.sources
        }


def summarise(found: dict[str, list[Trajectory]]) -> dict[str, float]:
    """Mean reward and accuracy, over all tasks and by source. An attempt is right when its reward reaches 1."""
    everything = [trajectory for trajectories in found.values() for trajectory in trajectories]
    metrics = _means("validation", everything)
    for name, trajectories in found.items():
        metrics |= {
            key: value for key, value in _means(f"validation/{name}", trajectories).items() if "length" not in key
        }
    return metrics


def _means(prefix: str, trajectories: Sequence[Trajectory]) -> dict[str, float]:
    valid = [trajectory for trajectory in trajectories if trajectory.status.valid]
    metrics = {f"{prefix}/failed": float(len(trajectories) - len(valid))} if len(valid) < len(trajectories) else {}
    if not valid:
        return metrics
    rewards = [trajectory.reward for trajectory in valid]
    return {
        **metrics,
        f"{prefix}/reward": sum(rewards) / len(valid),
        f"{prefix}/accuracy": sum(reward >= 1.0 for reward in rewards) / len(valid),
        f"{prefix}/length": sum(trajectory.num_sampled for trajectory in valid) / len(valid),
    }
