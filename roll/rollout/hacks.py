"""Looks for reward hacking in the responses that a step trains on, and reports it with examples.

Only attempts that a reward function scored are inspected. An attempt is rewarded if its reward is at least the mean of
its domain in the step, and above 0 or above the lowest of them.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from roll.journal.events import HackSuspected
from roll.journal.store import Journal
from roll.report.hacks import notice
from roll.report.samples import shorten
from roll.rewards.vocabulary import Vocabulary
from roll.tracking.hacks import HackMonitor, Sign, metric
from roll.types import Group, Task, Trajectory

if TYPE_CHECKING:
    from roll.data.codec import Detokenizer

_LOG = logging.getLogger(__name__)
_MIN_REWARDED = 4
"""Rewarded responses of a domain in a step; with fewer there are no metrics of them."""
_MIN_REFERENCES, _MIN_REFERENCE_SHARE = 3, 0.1
"""References, and fraction of a step's rewarded references, at which one response must be rewarded to count as
identical: with partial credit, a short response is often rewarded at a few similar references by chance."""
_MAX_READ, _MAX_READ_TOKENS = 64, 4096
"""Responses per step that are searched for words, and tokens of each, from its end: decoding takes time."""
_DISTINCT_RESPONSES, _DISTINCT_TOKENS = 8, 256
"""Responses, of one group each, and first tokens of each that diversity is measured over. More text has more
repetition, so the number of responses is fixed."""
_MAX_EXAMPLES, _MAX_EXCERPT = 3, 60


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardedAttempt:
    """A rewarded attempt of a step."""

    group: int
    reference: object
    """Equal for tasks whose right answers are equal; for tasks without an answer, their prompt."""
    trajectory: Trajectory

    @property
    def name(self) -> str:
        """Its name in `roll samples --attempt`."""
        return f"{self.group}.{self.trajectory.sibling}"

    @property
    def response(self) -> bytes:
        """The sampled tokens of all turns."""
        return b"|".join(turn.sampled.tobytes() for turn in self.trajectory.turns)


@dataclass(slots=True, kw_only=True)
class Inspection:
    """Metrics of one step, and examples of each sign."""

    metrics: dict[str, float] = field(default_factory=dict[str, float])
    examples: dict[tuple[str, Sign], tuple[str, list[RewardedAttempt]]] = field(
        default_factory=dict[tuple[str, Sign], "tuple[str, list[RewardedAttempt]]"]
    )
    """By domain and sign: an excerpt, and attempts."""


def inspect(
    groups: Sequence[Group], decode: Detokenizer, vocabularies: Mapping[str, Vocabulary] | None = None
) -> Inspection:
    """The metrics of the rewarded responses of each domain, and examples; `vocabularies` are by domain."""
    inspection = Inspection()
    scored: dict[str, list[Group]] = {}
    for group in groups:
        first = group.trajectories[0]
        if first.score is not None:
            scored.setdefault(first.task.domain, []).append(group)
    for domain, members in scored.items():
        rewards = np.array([each.reward for group in members for each in group.trajectories])
        inspection.metrics[metric(domain, "reward")] = float(rewards.mean())
        inspection.metrics[metric(domain, "std")] = float(rewards.std())
        rewarded = list(_select(members, rewards))
        if len(rewarded) >= _MIN_REWARDED:
            _measure(inspection, domain, rewarded, decode)
            words = (vocabularies or {}).get(domain)
            if words is not None:
                limit = max(_MIN_REWARDED, _MAX_READ // len(scored))
                _search(inspection, domain, rewarded[:limit], decode, words)
    return inspection


def _select(groups: Sequence[Group], rewards: np.ndarray) -> Iterable[RewardedAttempt]:
    """The rewarded attempts: one of each group, then the second of each group, and so on."""
    mean, lowest = float(rewards.mean()), min(0.0, float(rewards.min()))
    least = mean - 1e-9 * max(1.0, abs(mean))  # the mean of equal numbers may be larger than they are
    queues: list[list[RewardedAttempt]] = []
    for group in groups:
        reference = _reference(group.trajectories[0].task)
        queues.append(
            [
                RewardedAttempt(group=group.id, reference=reference, trajectory=each)
                for each in group.trajectories
                if each.turns and each.reward > lowest and each.reward >= least
            ]
        )
    for index in range(max(map(len, queues))):
        yield from (queue[index] for queue in queues if index < len(queue))


def _reference(task: Task) -> object:
    if task.answer is not None:
        return repr(task.answer)
    return task.messages or task.id


def _measure(inspection: Inspection, domain: str, rewarded: Sequence[RewardedAttempt], decode: Detokenizer) -> None:
    """Length, diversity and the share of responses that are rewarded at many references."""
    metrics = inspection.metrics
    metrics[metric(domain, "length")] = float(np.mean([each.trajectory.num_sampled for each in rewarded]))
    if (distinct := _distinct(rewarded)) is not None:
        metrics[metric(domain, "distinct")] = distinct
    by_response: dict[bytes, list[RewardedAttempt]] = {}
    for each in rewarded:
        by_response.setdefault(each.response, []).append(each)
    least = max(_MIN_REFERENCES, _MIN_REFERENCE_SHARE * len({each.reference for each in rewarded}))
    repeated = [same for same in by_response.values() if len({each.reference for each in same}) >= least]
    metrics[metric(domain, "identical")] = sum(map(len, repeated)) / len(rewarded)
    inspection.examples[domain, "rise"] = ("", list(rewarded[:_MAX_EXAMPLES]))
    if repeated:
        most = max(repeated, key=len)
        examples = _first_of(most, lambda each: each.reference)
        text = shorten(decode(most[0].trajectory.turns[-1].sampled), _MAX_EXCERPT)
        inspection.examples[domain, "identical"] = (f": {text!r}", examples)


def _distinct(rewarded: Sequence[RewardedAttempt]) -> float | None:
    """Distinct pairs of adjacent tokens divided by all pairs; None for too few groups or pairs."""
    one_per_group = _first_of(rewarded, lambda each: each.group)
    if len(one_per_group) < _DISTINCT_RESPONSES:
        return None
    pairs: list[np.ndarray] = []
    for each in one_per_group[:_DISTINCT_RESPONSES]:
        ids = np.concatenate([turn.sampled for turn in each.trajectory.turns])[:_DISTINCT_TOKENS].astype(np.int64)
        pairs.append((ids[:-1] << 32) | ids[1:])
    flat = np.concatenate(pairs)
    return len(np.unique(flat)) / len(flat) if len(flat) >= _DISTINCT_RESPONSES else None


def _first_of(attempts: Sequence[RewardedAttempt], key: Callable[[RewardedAttempt], object]) -> list[RewardedAttempt]:
    """The first attempt with each key."""
    firsts: dict[object, RewardedAttempt] = {}
    for each in attempts:
        firsts.setdefault(key(each), each)
    return list(firsts.values())


def _search(
    inspection: Inspection, domain: str, rewarded: Sequence[RewardedAttempt], decode: Detokenizer, words: Vocabulary
) -> None:
    """The share of responses with words of a grader."""
    matches: list[tuple[str, RewardedAttempt]] = []
    for each in rewarded:
        prompt = "\n".join(message.content for message in each.trajectory.task.messages)
        match = words.find(decode(each.trajectory.turns[-1].sampled[-_MAX_READ_TOKENS:]), prompt)
        if match is not None:
            matches.append((match, each))
    inspection.metrics[metric(domain, "vocabulary")] = len(matches) / len(rewarded)
    if matches:
        common = [repr(word) for word, _ in Counter(match for match, _ in matches).most_common(_MAX_EXAMPLES)]
        inspection.examples[domain, "vocabulary"] = (f": {', '.join(common)}", [each for _, each in matches])


@dataclass(slots=True, kw_only=True)
class HackDetector:
    """Inspects the groups of each step, records signs of hacking in the journal and shows a notice."""

    decode: Detokenizer
    vocabularies: Mapping[str, Vocabulary]
    """By domain."""
    journal: Journal
    directory: Path
    """The run directory, for the command in a notice."""
    monitor: HackMonitor = field(default_factory=HackMonitor)

    def inspect(self, step: int, groups: Sequence[Group]) -> dict[str, float]:
        """The metrics of the groups that `step` trains on."""
        inspection = inspect(groups, self.decode, self.vocabularies)
        reports = self.monitor.observe(step, inspection.metrics)
        for domain, sign, clause in reports:
            excerpt, attempts = inspection.examples.get((domain, sign), ("", []))
            event = HackSuspected(
                step=step,
                domain=domain,
                sign=sign,
                reason=clause + excerpt,
                attempts=tuple(each.name for each in islice(attempts, _MAX_EXAMPLES)),
            )
            self.journal.record(event)
            _LOG.warning("%s", notice(event, self.directory))
        rewards = {metric(group.trajectories[0].task.domain, "reward") for group in groups}  # logged for all attempts
        metrics = {name: value for name, value in inspection.metrics.items() if name not in rewards}
        return {**metrics, "hacks/notices": float(len(reports))}
