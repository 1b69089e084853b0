"""Detectors of rewards without information: attempts at one task that all get the same reward teach nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import fmean

from roll.config.notices import NoticeKind
from roll.tracking.notices.base import Metrics, ProblemState
from roll.tracking.notices.windows import WINDOW, Recent

_UNIFORM = re.compile(r"domain/(.+)/uniform")
NUM_CONSTANT = 10
"""Steps in a row of a constant reward: a model without any success yet gets this long for its first one."""
_MIN_GROUPS = 32.0
"""Groups that have to agree: in small batches, a few equal groups in a row are chance."""
_MAX_SIGNAL = 0.1
"""Fraction of the complete groups with different rewards up to which a step has next to no signal."""

_MIN_SIGNAL_BEFORE = 0.3
"""Fraction of such groups that a run has to have had before it can lose its signal."""


@dataclass(slots=True)
class ConstantReward:
    """Finds a domain in which all siblings have equal rewards in every step.

    A domain that has reached its best reward by learning is not reported: it is solved.
    """

    kind: NoticeKind = "constant_reward"
    num_calm: int = 1
    _equal: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """Rewards of the newest steps in a row in which all groups of a domain were uniform."""
    _num_groups: dict[str, float] = field(default_factory=dict[str, float])
    """Groups of these steps."""
    _best: dict[str, float] = field(default_factory=dict[str, float])
    """Best reward of a domain in a step with different rewards."""

    def observe(self, step: int, metrics: Metrics) -> Iterator[ProblemState]:
        for name, share in metrics.items():
            match = _UNIFORM.fullmatch(name)
            if match and (reward := metrics.get(f"domain/{match[1]}/reward")) is not None:
                groups = self._num_groups.get(match[1], 0.0) if share == 1 else 0.0
                self._num_groups[match[1]] = groups + metrics.get(f"domain/{match[1]}/groups", _MIN_GROUPS)
                yield from self._check(match[1], share, reward)

    def _check(self, domain: str, share: float, reward: float) -> Iterator[ProblemState]:
        metric = f"domain/{domain}/uniform"
        rewards = self._equal.setdefault(domain, [])
        if share < 1:
            self._best[domain] = max(reward, self._best.get(domain, reward))
            rewards.clear()
            text = f"rewards differ again in {1 - share:.0%} of the groups"
            yield ProblemState(metric=metric, domain=domain, present=False, text=text)
            return
        rewards.append(reward)
        solved = domain in self._best and fmean(rewards[-WINDOW:]) >= self._best[domain]
        if len(rewards) >= NUM_CONSTANT and self._num_groups[domain] >= _MIN_GROUPS and not solved:
            low, high = min(rewards[-NUM_CONSTANT:]), max(rewards[-NUM_CONSTANT:])
            same = f"every attempt got {high:.3g}"
            by_task = f"attempts at one task always get equal rewards ({low:.3g} to {high:.3g} on average)"
            text = f"{same if high - low <= 1e-6 * max(1.0, abs(high)) else by_task} in {NUM_CONSTANT} steps in a row"
            yield ProblemState(metric=metric, domain=domain, present=True, text=text)
            del rewards[:-NUM_CONSTANT]


@dataclass(slots=True)
class NoSignal:
    """Finds steps in which almost all complete groups were filtered, or have equal rewards after they differed.

    Without a filter, a model that starts with little success is not reported: it has little signal until it learns.
    """

    kind: NoticeKind = "no_signal"
    num_calm: int = WINDOW
    _shares: Recent = field(default_factory=lambda: Recent(WINDOW))
    """Fraction of the complete groups with different rewards."""
    _counts: Recent = field(default_factory=lambda: Recent(WINDOW))
    _filtered: Recent = field(default_factory=lambda: Recent(WINDOW))
    _highest: float = 0.0
    """Highest mean of `_shares`."""
    _best: float = float("-inf")
    """Best reward of a step with enough signal."""

    def observe(self, step: int, metrics: Metrics) -> Iterator[ProblemState]:
        trained, uniform = metrics.get("trained/groups"), metrics.get("trained/uniform")
        if trained is None or uniform is None:
            return
        filtered, reward = metrics.get("filtered/groups", 0.0), metrics.get("reward/mean", 0.0)
        share = trained * (1 - uniform) / (trained + filtered)
        self._shares.values.append(share)
        self._counts.values.append(trained + filtered)
        self._filtered.values.append(filtered)
        num_filtered, total = sum(self._filtered.values), sum(self._counts.values)
        enough = len(self._shares.values) == WINDOW and total >= _MIN_GROUPS
        low = enough and max(self._shares.values) <= _MAX_SIGNAL
        if share > _MAX_SIGNAL:
            self._best = max(self._best, reward)
        if enough:
            self._highest = max(self._highest, fmean(self._shares.values))
        lost = self._highest >= _MIN_SIGNAL_BEFORE and reward < self._best
        if low and (num_filtered > total / 2 or lost):
            text = (
                f"in each of {WINDOW} steps, rewards differ in at most {max(self._shares.values):.0%} of the complete "
                f"groups ({num_filtered:.0f} of {total:.0f} were filtered)"
            )
            yield ProblemState(metric="trained/uniform", present=True, text=text)
        elif not low:
            yield ProblemState(
                metric="trained/uniform", present=False, text=f"rewards differ in {share:.0%} of the groups"
            )
