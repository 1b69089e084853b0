"""Held-out tasks, attempted once or several times each with one version of the weights."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from roll.errors import RewardFailed
from roll.rollout.episode.runner import Attempt, EpisodeRunner
from roll.rollout.source import Source
from roll.rollout.votes import answer_of, majority, pass_at
from roll.types import Status, Task, Trajectory

VOTED = "voted"
"""Among a trajectory's metrics: 1 for the one whose answer stands for all attempts at its task, 0 for the others."""
_UNDER_WAY = 256
"""Attempts that may wait on the router at once; keeps memory bounded on large sets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Validator:
    """Plays every task of its sources. Whoever calls it publishes nothing until it is through."""

    sources: Sequence[Source]
    runner: EpisodeRunner
    seed: int
    samples: int = 1
    """Attempts at each task."""

    @property
    def num_tasks(self) -> int:
        return sum(len(source.tasks) for source in self.sources)

    async def run(self, advance: Callable[[int], None]) -> dict[str, list[Trajectory]]:
        """Trajectories by source, in the order of its tasks, siblings together; `advance` hears of each task's end."""
        limit = asyncio.Semaphore(_UNDER_WAY)

        async def attempt(source: Source, task: Task, sibling: int) -> Trajectory:
            numbered = Attempt(task=task, sibling=sibling, number=0, purpose="validate", seed=self.seed)
            async with limit:
                return await source.attempt(self.runner, numbered)

        async def attempts(source: Source, task: Task) -> list[Trajectory]:
            siblings = range(self.samples)
            found = list(await asyncio.gather(*(attempt(source, task, sibling) for sibling in siblings)))
            advance(1)
            return found if self.samples == 1 else self._voted(source, found)

        found: dict[str, list[Trajectory]] = {}
        for source in self.sources:
            siblings = await asyncio.gather(*(attempts(source, task) for task in source.tasks))
            found[source.name] = [trajectory for each in siblings for trajectory in each]
        return found

    def _voted(self, source: Source, siblings: Sequence[Trajectory]) -> list[Trajectory]:
        """The same attempts, with a mark on the one that speaks for the majority; what failed has no vote."""
        read = answer_of(source.reward)
        heard: list[Trajectory] = []
        answers: list[str | None] = []
        for trajectory in siblings:
            answer = None
            if trajectory.status.valid:
                try:
                    answer = read(self.runner.template.decode(trajectory.turns[-1].sampled))
                except RewardFailed as error:
                    trajectory = replace(trajectory, status=Status.REWARD_FAILED, reason=str(error))
            heard.append(trajectory)
            answers.append(answer)
        chosen = majority(answers)
        return [
            replace(trajectory, metrics={**trajectory.metrics, VOTED: float(place == chosen)})
            for place, trajectory in enumerate(heard)
        ]


def summarise(found: dict[str, list[Trajectory]]) -> dict[str, float]:
    """Mean reward and accuracy, over all tasks and by source. An attempt is right when its reward reaches 1.

    With several attempts at a task also `pass@k`, for k the powers of two and all of them, and how often the answer
    that most attempts give is right.
    """
    everything = [trajectory for trajectories in found.values() for trajectory in trajectories]
    metrics = _means("validation", everything) | _together("validation", _by_task(found.values()))
    for name, trajectories in found.items():
        own = _means(f"validation/{name}", trajectories) | _together(f"validation/{name}", _by_task([trajectories]))
        metrics |= {key: value for key, value in own.items() if "length" not in key}
    return metrics


def _by_task(sources: Iterable[Sequence[Trajectory]]) -> list[list[Trajectory]]:
    """The valid attempts of those that were made several at a time, one task's together."""
    groups: list[list[Trajectory]] = []
    for trajectories in sources:
        tasks: dict[str, list[Trajectory]] = {}
        for trajectory in trajectories:
            if trajectory.status.valid and VOTED in trajectory.metrics:
                tasks.setdefault(trajectory.task.id, []).append(trajectory)
        groups += tasks.values()
    return groups


def _together(prefix: str, groups: Sequence[Sequence[Trajectory]]) -> dict[str, float]:
    """What only several attempts at a task can tell; a task with fewer than k valid ones is no part of `pass@k`."""
    if not groups:
        return {}
    samples = max(len(group) for group in groups)
    right = [(sum(map(_right, group)), len(group)) for group in groups]
    metrics: dict[str, float] = {}
    for k in sorted({*(2**power for power in range(1, samples.bit_length())), samples}):
        enough = [pass_at(num_right, size, k) for num_right, size in right if size >= k]
        metrics[f"{prefix}/pass@{k}"] = sum(enough) / len(enough)
    votes = [any(each.metrics.get(VOTED) and _right(each) for each in group) for group in groups]
    return metrics | {f"{prefix}/majority": sum(votes) / len(votes)}


def _right(trajectory: Trajectory) -> bool:
    return trajectory.reward >= 1.0


def _means(prefix: str, trajectories: Sequence[Trajectory]) -> dict[str, float]:
    valid = [trajectory for trajectory in trajectories if trajectory.status.valid]
    metrics = {f"{prefix}/failed": float(len(trajectories) - len(valid))} if len(valid) < len(trajectories) else {}
    if not valid:
        return metrics
    rewards = [trajectory.reward for trajectory in valid]
    return {
        **metrics,
        f"{prefix}/reward": sum(rewards) / len(valid),
        f"{prefix}/accuracy": sum(map(_right, valid)) / len(valid),
        f"{prefix}/length": sum(trajectory.num_sampled for trajectory in valid) / len(valid),
    }
