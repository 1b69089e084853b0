"""Validation: held-out tasks, each attempted once or several times with one version of the weights."""

from __future__ import annotations

import asyncio
import importlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import pstdev

from roll.errors import RewardFailed, blame
from roll.registry import REWARDS
from roll.rollout.episode.runner import Attempt, EpisodeRunner
from roll.rollout.source import TaskSource
from roll.types import Spec, Status, Task, Trajectory

VOTED = "voted"
"""Metric of a trajectory: 1 for the representative of the majority answer to its task, 0 for all others."""
_MAX_CONCURRENT = 256
"""Most concurrent attempts; bounds memory on large sets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Validator:
    """Attempts every task of its sources. The caller publishes no weights until it is done."""

    sources: Sequence[TaskSource]
    runner: EpisodeRunner
    seed: int
    samples: int = 1
    """Attempts per task."""

    @property
    def num_tasks(self) -> int:
        return sum(len(source.tasks) for source in self.sources)

    async def run(self, advance: Callable[[int], None]) -> dict[str, list[Trajectory]]:
        """Trajectories by source, in the order of its tasks, siblings together; calls `advance(1)` after each task."""
        limit = asyncio.Semaphore(_MAX_CONCURRENT)

        async def attempt(source: TaskSource, task: Task, sibling: int) -> Trajectory:
            identity = Attempt(task=task, sibling=sibling, number=0, purpose="validate", seed=self.seed)
            async with limit:
                return await source.attempt(self.runner, identity)

        async def attempts(source: TaskSource, task: Task) -> list[Trajectory]:
            siblings = range(self.samples)
            trajectories = list(await asyncio.gather(*(attempt(source, task, sibling) for sibling in siblings)))
            advance(1)
            return trajectories if self.samples == 1 else self._vote(source, trajectories)

        by_source: dict[str, list[Trajectory]] = {}
        for source in self.sources:
            siblings = await asyncio.gather(*(attempts(source, task) for task in source.tasks))
            by_source[source.name] = [trajectory for each in siblings for trajectory in each]
        return by_source

    def _vote(self, source: TaskSource, siblings: Sequence[Trajectory]) -> list[Trajectory]:
        """The same attempts with the metric `VOTED`; failed attempts have no vote."""
        read = answer_of(source.reward)
        voters: list[Trajectory] = []
        answers: list[str | None] = []
        for trajectory in siblings:
            answer = None
            if trajectory.status.valid:
                try:
                    answer = read(self.runner.template.decode(trajectory.turns[-1].sampled))
                except RewardFailed as error:
                    trajectory = replace(trajectory, status=Status.REWARD_FAILED, reason=str(error))
            voters.append(trajectory)
            answers.append(answer)
        chosen = majority(answers)
        return [
            replace(trajectory, metrics={**trajectory.metrics, VOTED: float(index == chosen)})
            for index, trajectory in enumerate(voters)
        ]


def summarise(by_source: dict[str, list[Trajectory]]) -> dict[str, float]:
    """Mean reward and accuracy, over all tasks and by source. An attempt is right when its reward reaches 1.

    With several attempts per task also `pass@k`, for k the powers of two and the number of attempts, and the accuracy
    of the majority answer.
    """
    everything = [trajectory for trajectories in by_source.values() for trajectory in trajectories]
    metrics = _means("validation", everything) | _sample_metrics("validation", _by_task(by_source.values()))
    for name, trajectories in by_source.items():
        prefix = f"validation/{name}"
        source_metrics = _means(prefix, trajectories) | _sample_metrics(prefix, _by_task([trajectories]))
        metrics |= {key: value for key, value in source_metrics.items() if "length" not in key}
    return metrics


def describe_failures(by_source: dict[str, list[Trajectory]]) -> str:
    """How many attempts failed, and why the first did; empty if none did."""
    everything = [trajectory for trajectories in by_source.values() for trajectory in trajectories]
    failed = [trajectory for trajectory in everything if not trajectory.status.valid]
    if not failed:
        return ""
    count = f"{len(failed)} of {len(everything)} held-out attempts failed and are left out of the means"
    return f"{count}, the first with: {failed[0].reason}"


def _by_task(sources: Iterable[Sequence[Trajectory]]) -> list[list[Trajectory]]:
    """Valid attempts of tasks with several attempts, grouped by task."""
    groups: list[list[Trajectory]] = []
    for trajectories in sources:
        tasks: dict[str, list[Trajectory]] = {}
        for trajectory in trajectories:
            if trajectory.status.valid and VOTED in trajectory.metrics:
                tasks.setdefault(trajectory.task.id, []).append(trajectory)
        groups += tasks.values()
    return groups


def _sample_metrics(prefix: str, groups: Sequence[Sequence[Trajectory]]) -> dict[str, float]:
    """Metrics over several attempts per task; `pass@k` leaves out tasks with fewer than k valid attempts."""
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
        f"{prefix}/std": pstdev(rewards),
        f"{prefix}/tasks": float(len({(trajectory.task.domain, trajectory.task.id) for trajectory in valid})),
        f"{prefix}/reward": sum(rewards) / len(valid),
        f"{prefix}/accuracy": sum(map(_right, valid)) / len(valid),
        f"{prefix}/length": sum(trajectory.num_sampled for trajectory in valid) / len(valid),
    }


def pass_at(num_right: int, num_attempts: int, k: int) -> float:
    """Unbiased estimate of the chance that one of `k` attempts is right, from `num_attempts` of them."""
    assert 0 <= num_right <= num_attempts and 1 <= k <= num_attempts, "k attempts cannot be drawn from fewer"
    return 1.0 - math.comb(num_attempts - num_right, k) / math.comb(num_attempts, k)


def majority(answers: Sequence[str | None]) -> int | None:
    """Index of the first attempt with the most frequent answer; None if no attempt has an answer."""
    votes = Counter(answer for answer in answers if answer is not None)
    return answers.index(votes.most_common(1)[0][0]) if votes else None


def answer_of(reward: Spec | None) -> Callable[[str], str | None]:
    """Extracts answers by `answer_of(response)` of the reward's module; without one, the stripped response.

    Of several rewards, the first whose module has this function is used. Raises `RewardFailed` if the function raises.
    """
    names = [] if reward is None else [str(each["kind"]) for each in reward.kwargs.get("rewards", ())] or [reward.name]
    modules = [importlib.import_module(REWARDS.locate(name)[0]) for name in names]
    reader = next((module.answer_of for module in modules if hasattr(module, "answer_of")), None)
    if reward is None or reader is None:
        return lambda response: response.strip() or None
    where = f"reward {reward.name!r}, answer_of"

    def read(response: str) -> str | None:
        with blame(RewardFailed, where):
            answer = reader(response)
        return None if answer is None or answer == "" else str(answer)

    return read
