"""How well a reward agrees with people: its scores of hand-labelled responses.

    python -m roll.rewards.calibration labelled.jsonl judge.yaml

A line of the first file is `{"prompt": ..., "response": ..., "label": ...}`, plus `answer`, `messages` and other fields
that the reward reads; a label is a number from 0 to 1, or true or false. The second file holds a `reward:` section or
list, as in a run's source.
"""

from __future__ import annotations

import asyncio
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from roll.config.faults import raise_all
from roll.config.load import read
from roll.config.reward import Reward as RewardSection
from roll.data.replies import read_replies
from roll.errors import ConfigError, RollError
from roll.preflight import importable
from roll.rewards.base import RewardAdapter, stop_rewards
from roll.rewards.result import RewardResult
from roll.types import Task

_MAX_CONCURRENT = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledResponse:
    """A response with a human label."""

    task: Task
    response: str
    label: float
    """From 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelGroup:
    """Scores of the responses with one label."""

    label: float
    count: int
    mean: float
    spread: float
    """Standard deviation of the scores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Agreement of scores and labels over the scored responses; at least `threshold` counts as right."""

    count: int
    failures: tuple[str, ...]
    """The reason per response without a score."""
    threshold: float
    right_called_right: int
    right_called_wrong: int
    wrong_called_right: int
    """False positives, which a policy would learn to exploit."""
    wrong_called_wrong: int
    accuracy: float
    kappa: float | None
    """Cohen's kappa: agreement beyond chance, at most 1; None if chance alone gives full agreement."""
    correlation: float | None
    """Pearson correlation of scores and labels; None if either is constant."""
    groups: tuple[LabelGroup, ...]

    def table(self) -> str:
        """The report for a terminal."""
        lines = [
            f"scored {self.count}, failed {len(self.failures)}",
            f"accuracy {self.accuracy:.3f}, kappa {_format(self.kappa)}, correlation {_format(self.correlation)}",
            "",
            f"{'':>12}{'called right':>14}{'called wrong':>14}   (right from {self.threshold:g} on)",
            f"{'right':>12}{self.right_called_right:>14}{self.right_called_wrong:>14}",
            f"{'wrong':>12}{self.wrong_called_right:>14}{self.wrong_called_wrong:>14}",
            "",
            f"{'label':>12}{'responses':>14}{'mean score':>14}{'spread':>14}",
            *(f"{group.label:>12g}{group.count:>14}{group.mean:>14.3f}{group.spread:>14.3f}" for group in self.groups),
            *(f"failed: {reason}" for reason in self.failures),
        ]
        return "\n".join(lines)


async def calibrate(
    score: Callable[[Task, str], Awaitable[RewardResult]],
    labelled: Sequence[LabelledResponse],
    *,
    threshold: float = 0.5,
) -> Calibration:
    """Score labelled responses with `score`, such as `RewardAdapter.score`. Failures are left out and listed."""
    slots = asyncio.Semaphore(_MAX_CONCURRENT)

    async def score_entry(entry: LabelledResponse) -> RewardResult:
        async with slots:
            return await score(entry.task, entry.response)

    results = await asyncio.gather(*(score_entry(entry) for entry in labelled))
    failures = tuple(result.reason for result in results if result.score is None)
    pairs = [
        (result.score.total, entry.label)
        for result, entry in zip(results, labelled, strict=True)
        if result.score is not None
    ]
    if not pairs:
        raise ConfigError(f"calibration: none of {len(labelled)} responses was scored ({failures[:1]}); fix that first")
    return compare(pairs, failures, threshold=threshold)


def compare(pairs: Sequence[tuple[float, float]], failures: tuple[str, ...], *, threshold: float) -> Calibration:
    """Statistics of (score, label) pairs."""
    called = [(label >= threshold, score >= threshold) for score, label in pairs]
    num, right = len(pairs), sum(label for label, _ in called)
    called_right = sum(score for _, score in called)
    both = sum(label and score for label, score in called)
    accuracy = sum(label == score for label, score in called) / num
    chance = (right * called_right + (num - right) * (num - called_right)) / num**2
    scores, labels = [score for score, _ in pairs], [label for _, label in pairs]
    constant = len(set(scores)) == 1 or len(set(labels)) == 1
    return Calibration(
        count=num,
        failures=failures,
        threshold=threshold,
        right_called_right=both,
        right_called_wrong=right - both,
        wrong_called_right=called_right - both,
        wrong_called_wrong=num - right - called_right + both,
        accuracy=accuracy,
        kappa=None if chance == 1 else (accuracy - chance) / (1 - chance),
        correlation=None if constant else statistics.correlation(scores, labels),
        groups=_group_by_label(pairs),
    )


def read_labels(path: str) -> list[LabelledResponse]:
    """The labelled responses of a JSONL file; raises `ConfigError` with one line per fault."""
    entries: list[LabelledResponse] = []
    faults: list[str] = []
    for row in read_replies(Path(path), {}):
        metadata = {**row.task.metadata}
        value: Any = metadata.pop("label", None)
        try:
            label = float(value)
        except (TypeError, ValueError):
            label = math.nan
        if not 0 <= label <= 1:
            faults.append(f"{path}:{row.line}: label is not a number from 0 to 1 (got {value!r}); write one")
        task = replace(row.task, metadata=metadata)
        entries += [LabelledResponse(task=task, response=response, label=label) for response in row.replies]
    if faults:
        raise ConfigError("\n".join(faults[:10]))
    return entries


def _group_by_label(pairs: Sequence[tuple[float, float]]) -> tuple[LabelGroup, ...]:
    scores: defaultdict[float, list[float]] = defaultdict(list)
    for score, label in pairs:
        scores[label].append(score)
    return tuple(
        LabelGroup(label=label, count=len(values), mean=statistics.fmean(values), spread=statistics.pstdev(values))
        for label, values in sorted(scores.items())
    )


def _format(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.3f}"


def main(arguments: Sequence[str]) -> int:
    """The command; its exit code is 0, or 2 for an error the user can fix."""
    try:
        if len(arguments) != 2:
            raise ConfigError("usage: python -m roll.rewards.calibration labelled.jsonl reward.yaml")
        calibration = asyncio.run(_run(read_labels(arguments[0]), _load_reward(arguments[1])))
    except RollError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(f"{calibration.table()}\n")
    return 0


def _load_reward(path: str) -> RewardAdapter:
    document = read(Path(path))
    raise_all(document.faults)
    try:
        config = RewardSection.model_validate(document.tree["reward"])
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{path}: no reward in it ({error}); write `reward: {{kind: ...}}`, or a list") from None
    importable(Path(path))
    return RewardAdapter.load(config.spec)


async def _run(labelled: Sequence[LabelledResponse], reward: RewardAdapter) -> Calibration:
    failure = await reward.start()
    if failure is not None:
        raise ConfigError(failure.reason)
    try:
        return await calibrate(reward.score, labelled)
    finally:
        await stop_rewards(reward, lambda text: sys.stderr.write(f"{text}\n"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
