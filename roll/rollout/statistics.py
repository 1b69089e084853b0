"""Metrics of the groups that a step trains on."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter

import numpy as np

from roll.algorithms.filters import mixed
from roll.journal.packing import version_runs
from roll.journal.records import TokenValues
from roll.types import Batch, Group, Status, Trajectory

_RESERVED = frozenset({"mean", "std", "model", "masked", "spans"})
"""Names below `reward/` that the run itself logs; a score part with such a name is logged as `reward/part/<name>`."""


def describe(
    groups: Sequence[Group], *, step: int, step_of: Mapping[int, int], num_reused: int = 0
) -> dict[str, float]:
    """Rewards, lengths and staleness of what `step` trains on; staleness counts the steps since a token's weights.

    The first `num_reused` groups were trained on by earlier steps, and their tokens were counted there.
    """
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    rewards = np.array([trajectory.reward for trajectory in trajectories])
    lengths = np.array([trajectory.num_sampled for trajectory in trajectories])
    ages = _staleness_counts(trajectories, step, step_of)
    num_tokens = sum(ages.values())
    return {
        "reward/mean": float(rewards.mean()),
        "reward/std": float(rewards.std()),
        "length/mean": float(lengths.mean()),
        "length/max": float(lengths.max()),
        "length/truncated": float(np.mean([item.status is Status.TRUNCATED for item in trajectories])),
        "staleness/mean": sum(age * count for age, count in ages.items()) / num_tokens,
        "staleness/max": float(max(ages)),
        **{f"staleness/{age}": count / num_tokens for age, count in sorted(ages.items())},
        "tokens/generated": float(
            sum(each.num_sampled for group in groups[num_reused:] for each in group.trajectories)
        ),
        **_by_domain(trajectories, rewards.tolist()),
        **_by_groups(groups),
    }


def _by_groups(groups: Sequence[Group]) -> dict[str, float]:
    """Numbers of groups, and fractions of those with equal rewards; groups of one attempt have no such fraction."""
    counts: Counter[str] = Counter()
    equal: dict[str, list[bool]] = {}
    for group in groups:
        for prefix in ("trained", f"domain/{group.trajectories[0].task.domain}"):
            counts[f"{prefix}/groups"] += 1
            if len(group.trajectories) > 1:
                equal.setdefault(f"{prefix}/uniform", []).append(mixed(group) != "")
    return {**dict(counts), **{name: float(np.mean(values)) for name, values in equal.items()}}


def compare(trained: Sequence[Group], waiting: Sequence[Group]) -> dict[str, float]:
    """Compare trained groups with complete ones that wait, to reveal a selection by length, reward or domain."""
    if not waiting:
        return {"waiting/groups": 0.0}
    metrics = {"waiting/groups": float(len(waiting))}
    sides = [[each for group in groups for each in group.trajectories] for groups in (trained, waiting)]
    measures: dict[str, Callable[[Trajectory], float]] = {
        "length": lambda each: float(each.num_sampled),
        "reward": lambda each: each.reward,
        **{f"share/{name}": _is_of(name) for name in sorted({each.task.domain for side in sides for each in side})},
    }
    for name, measure in measures.items():
        trains, waits = (float(np.mean([measure(each) for each in side])) for side in sides)
        metrics |= {f"waiting/{name}": waits, f"bias/{name}": trains - waits}
    return metrics


def compare_stopped(trained: Sequence[Group], stopped: Mapping[int, Sequence[int]]) -> dict[str, float]:
    """Compare trained attempts with those that were stopped in their place; `stopped` has their tokens, by group.

    A stopped attempt has no reward: those of its group stand for it.
    """
    numbers = [num_tokens for tokens in stopped.values() for num_tokens in tokens]
    metrics = {"stopped/attempts": float(len(numbers)), "stopped/tokens": float(sum(numbers))}
    if not numbers:
        return metrics
    attempts = [each for group in trained for each in group.trajectories]
    affected = {group.id: group.trajectories for group in trained if group.id in stopped}
    rewards = [float(np.mean([each.reward for each in affected[id]])) for id, tokens in stopped.items() for _ in tokens]
    domains = [affected[id][0].task.domain for id, tokens in stopped.items() for _ in tokens]
    sides = {
        "length": (np.mean([each.num_sampled for each in attempts]), np.mean(numbers)),
        "reward": (np.mean([each.reward for each in attempts]), np.mean(rewards)),
    }
    for name in sorted({each.task.domain for each in attempts}):
        share = np.mean([each.task.domain == name for each in attempts])
        sides[f"share/{name}"] = (share, np.mean([domain == name for domain in domains]))
    for name, (trains, stops) in sides.items():
        metrics |= {f"stopped/{name}": float(stops), f"bias/stopped/{name}": float(trains - stops)}
    return metrics


def mean_advantages(groups: Sequence[Group], batch: Batch) -> dict[int, dict[int, float | None]]:
    """By group and sibling, the mean advantage of the attempt's sampled tokens; `batch` is made of `groups`."""
    owners: list[tuple[int, int]] = []  # of the batch's trajectories, in the order of `collate`
    for group in sorted(groups, key=attrgetter("id")):
        for trajectory in sorted(group.trajectories, key=attrgetter("sibling")):
            owners += [(group.id, trajectory.sibling)] * len(trajectory.by_agent())
    if batch.advantages is None:
        return {}
    numbers = {owner: index for index, owner in enumerate(dict.fromkeys(owners))}
    attempts = np.array([numbers[owner] for owner in owners])[batch.trajectory.numpy()]  # one per row
    tokens = np.repeat(attempts, batch.lengths)[batch.trained.numpy()]
    sums = np.bincount(tokens, batch.advantages.numpy()[batch.trained.numpy()], len(numbers))
    counts = np.bincount(tokens, minlength=len(numbers))
    means: dict[int, dict[int, float | None]] = {}
    for (group, sibling), index in numbers.items():
        mean = float(sums[index] / counts[index]) if counts[index] else 0.0
        means.setdefault(group, {})[sibling] = mean if math.isfinite(mean) else None
    return means


def token_values(step: int, groups: Sequence[Group], batch: Batch) -> Iterator[TokenValues]:
    """Advantages and trainer logprobs of each attempt's sampled tokens; `batch` is made of `groups`."""
    if batch.advantages is None:
        return
    sampled = batch.versions.numpy() >= 0
    trained = batch.trained.numpy()[sampled]
    advantages = np.where(trained, batch.advantages.numpy()[sampled], np.nan)
    old = None if batch.old_logprobs is None else np.where(trained, batch.old_logprobs.numpy()[sampled], np.nan)
    start = 0
    for group in sorted(groups, key=attrgetter("id")):  # in the order of `collate`
        for trajectory in sorted(group.trajectories, key=attrgetter("sibling")):
            spans: dict[str, list[slice]] = {}  # of the segments, by agent
            for part in trajectory.by_agent().values():
                for segment in part.segments:
                    size = sum(len(turn.sampled) for turn in segment.turns)
                    spans.setdefault(segment.agent, []).append(slice(start, start := start + size))
            order = [spans[segment.agent].pop(0) for segment in trajectory.segments]
            yield TokenValues(
                step=step,
                group=group.id,
                sibling=trajectory.sibling,
                advantages=np.concatenate([advantages[span] for span in order]),
                trainer_logprobs=None if old is None else np.concatenate([old[span] for span in order]),
            )


def _is_of(domain: str) -> Callable[[Trajectory], float]:
    return lambda each: float(each.task.domain == domain)


def _staleness_counts(trajectories: Sequence[Trajectory], step: int, step_of: Mapping[int, int]) -> dict[int, int]:
    """Number of tokens by staleness."""
    counts: Counter[int] = Counter()
    for trajectory in trajectories:
        for segment in trajectory.segments:
            for turn in segment.turns:
                for version, num_tokens in version_runs(turn.versions):
                    counts[step - 1 - step_of[version]] += num_tokens
    return counts


def _by_domain(trajectories: Sequence[Trajectory], rewards: Sequence[float]) -> dict[str, float]:
    """Means of rewards (per agent if there are several), of reward parts and of environment metrics."""
    values: dict[str, list[float]] = {}
    for trajectory, reward in zip(trajectories, rewards, strict=True):
        domain = trajectory.task.domain
        agents = trajectory.by_agent() if len(trajectory.segments) > 1 else {}
        values.setdefault(f"domain/{domain}/reward", []).append(reward)
        for agent, share in agents.items() if len(agents) > 1 else ():
            values.setdefault(f"domain/{domain}/reward/{agent}", []).append(share.reward)
        for name, value in (trajectory.score.parts if trajectory.score else {}).items():
            values.setdefault(f"reward/part/{name}" if name in _RESERVED else f"reward/{name}", []).append(value)
        if trajectory.score is not None and trajectory.score.spans:
            values.setdefault("reward/spans", []).append(trajectory.score.total - trajectory.score.value)
        for name, value in trajectory.metrics.items():
            values.setdefault(f"env/{domain}/{name}", []).append(value)
    return {name: float(np.mean(numbers)) for name, numbers in values.items()}
