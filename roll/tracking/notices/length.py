"""Detectors of responses whose length explodes or collapses without a gain in reward."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from statistics import fmean

from roll.config.notices import NoticeKind
from roll.tracking.notices.base import Metrics, ProblemState
from roll.tracking.notices.windows import NEWEST, SIGNIFICANT, WINDOW, Gain, Recent, noise, noise_of_difference

LENGTH, TRUNCATED = "length/mean", "length/truncated"
_HORIZON = 50
"""Steps within which a change counts: over hundreds of steps, reasoning may well become several times as long."""
_MAX_GROWTH, _MIN_GROWN = 2.0, 16.0
_MAX_REMAINING, _MIN_SHRUNK = 0.4, 8.0
"""Least relative change, and least change in tokens: a few tokens more or less are no problem."""
_MIN_TRUNCATED, _MIN_TRUNCATED_RISE = 0.5, 0.25


@dataclass(frozen=True, slots=True)
class _Past:
    """Means over one window of steps, which ends at a step."""

    step: int
    value: float
    reward: float | None


@dataclass(slots=True)
class _ChangeWithoutGain:
    """Compares the newest values with the lowest or highest window within the horizon."""

    metric: str
    pick: Callable[..., _Past]
    """`min` or `max`."""
    changed: Callable[[float, float], bool]
    """Whether a change is large, from the value before and the newest mean."""
    describe: Callable[[float, _Past], str]
    _values: Recent = field(default_factory=lambda: Recent(_HORIZON))
    _windows: deque[_Past] = field(default_factory=lambda: deque[_Past](maxlen=_HORIZON))
    _gain: Gain = field(default_factory=Gain)
    _reference: _Past | None = None
    """The window before the change that is still there, until half of the change is undone."""
    _change: float = 0.0

    def observe(self, step: int, metrics: Metrics) -> Iterator[ProblemState]:
        """The state after a step that has the metric."""
        if self.metric not in metrics:
            return
        self._values.values.append(metrics[self.metric])
        self._gain.observe(metrics.get("reward/mean"))
        if len(self._values.values) < WINDOW:
            return
        self._windows.append(_Past(step, fmean(self._values.last(WINDOW)), self._gain.mean()))
        past = self._reference or self.pick(self._windows, key=attrgetter("value"))
        newest = fmean(self._values.last(NEWEST))
        text, change = self.describe(newest, past), newest - past.value
        if self._reference is None and self._begins(newest, past, metrics):
            self._reference, self._change = past, change
        elif abs(change) < abs(self._change) / 2:
            self._reference = None
        if self._reference is not None:
            yield ProblemState(metric=self.metric, present=True, text=text + self._rewards(past))
        elif not self.changed(past.value, newest):
            yield ProblemState(metric=self.metric, present=False, text=text)

    def _begins(self, newest: float, past: _Past, metrics: Metrics) -> bool:
        """Whether the change is large, beyond noise, and did not pay."""
        if not self.changed(past.value, newest) or self._gain.improved(past.reward, NEWEST):
            return False
        deviation = max(noise(self._values.before(NEWEST)), self._error((past.value + newest) / 2, metrics))
        return abs(newest - past.value) > SIGNIFICANT * noise_of_difference(deviation, WINDOW, NEWEST)

    def _error(self, share: float, metrics: Metrics) -> float:
        """Standard error of a share, of which one group counts as one response: small batches jump."""
        num_groups = metrics.get("trained/groups", 0.0)
        return math.sqrt(share * (1 - share) / num_groups) if self.metric == TRUNCATED and num_groups else 0.0

    def _rewards(self, past: _Past) -> str:
        now = self._gain.mean(NEWEST)
        known = now is not None and past.reward is not None
        return f", while the reward went from {past.reward:.3f} to {now:.3f}" if known else ""


def _describe_length(newest: float, past: _Past) -> str:
    return f"responses have {newest:.1f} tokens on average, after {past.value:.1f} up to step {past.step}"


def _describe_truncated(newest: float, past: _Past) -> str:
    return f"{newest:.0%} of the responses are truncated, after {past.value:.0%} up to step {past.step}"


def _grown(before: float, newest: float) -> bool:
    return newest > _MAX_GROWTH * before and newest - before > _MIN_GROWN


def _shrunk(before: float, newest: float) -> bool:
    return newest < _MAX_REMAINING * before and before - newest > _MIN_SHRUNK


def _cut_more(before: float, newest: float) -> bool:
    return newest >= _MIN_TRUNCATED and newest - before >= _MIN_TRUNCATED_RISE


_growth = partial(_ChangeWithoutGain, LENGTH, min, _grown, _describe_length)
_shrinkage = partial(_ChangeWithoutGain, LENGTH, max, _shrunk, _describe_length)
_truncation = partial(_ChangeWithoutGain, TRUNCATED, min, _cut_more, _describe_truncated)


@dataclass(slots=True)
class LengthGrowth:
    """Finds responses that become twice as long without a gain in reward."""

    kind: NoticeKind = "length_growth"
    num_calm: int = NEWEST
    _change: _ChangeWithoutGain = field(default_factory=_growth)

    def observe(self, step: int, metrics: Metrics) -> Iterator[ProblemState]:
        return self._change.observe(step, metrics)


@dataclass(slots=True)
class LengthCollapse:
    """Finds responses that lose most of their length without a gain in reward."""

    kind: NoticeKind = "length_collapse"
    num_calm: int = NEWEST
    _change: _ChangeWithoutGain = field(default_factory=_shrinkage)

    def observe(self, step: int, metrics: Metrics) -> Iterator[ProblemState]:
        return self._change.observe(step, metrics)


@dataclass(slots=True)
class Truncation:
    """Finds a growing share of truncated responses without a gain in reward."""

    kind: NoticeKind = "truncation"
    num_calm: int = NEWEST
    _change: _ChangeWithoutGain = field(default_factory=_truncation)

    def observe(self, step: int, metrics: Metrics) -> Iterator[ProblemState]:
        return self._change.observe(step, metrics)
