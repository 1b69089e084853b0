"""Detectors of tokens that the trained policy would not sample: a mismatch that grows, stale tokens uncorrected."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import fmean

from roll.config.notices import NoticeKind
from roll.tracking.notices.base import Metrics, ProblemState, named, sibling_metric
from roll.tracking.notices.windows import WINDOW, Recent

MISMATCH = "sampler_mismatch/mean"
_MIN_GROWTH = 3.0
"""Growth over the lowest mean of a window; recorded runs stay within twice of it."""
_MIN_MISMATCH = 0.02
"""Nats from which a mismatch without staleness counts; engines in bfloat16 differ by 0.003 to 0.008."""
_FAR = 0.2
"""Nats from which stale tokens count: a ratio of about 1.2, as far as the usual clipping goes."""


@dataclass(slots=True)
class _Mismatch:
    """The mismatch of one policy, with and without stale tokens apart: stale tokens differ in every run."""

    recent: Recent = field(default_factory=lambda: Recent(WINDOW))
    lowest: float = math.inf


@dataclass(slots=True)
class SamplerMismatch:
    """Finds a mismatch of sampler and trainer that grows to several times its lowest value."""

    kind: NoticeKind = "sampler_mismatch"
    num_calm: int = WINDOW
    _series: dict[tuple[str, bool], _Mismatch] = field(default_factory=dict[tuple[str, bool], _Mismatch])

    def observe(self, step: int, metrics: Metrics) -> Iterator[ProblemState]:
        stale = metrics.get("staleness/mean", 0.0) > 0
        for name, value in named(metrics, MISMATCH).items():
            series = self._series.setdefault((name, stale), _Mismatch())
            series.recent.values.append(value)
            if len(series.recent.values) < WINDOW:
                continue
            mean = fmean(series.recent.values)
            series.lowest = min(series.lowest, mean)
            limit = max(_FAR if stale else _MIN_MISMATCH, _MIN_GROWTH * series.lowest)
            text = (
                f"logprobs of sampler and trainer differ by {mean:.3g} nats per token (mean of {WINDOW} steps), by "
                f"{series.lowest:.3g} at the lowest; staleness is {metrics.get('staleness/mean', 0.0):.2f} steps"
            )
            if mean > limit:
                yield ProblemState(metric=name, present=True, text=text)
            elif mean < limit / 2:
                yield ProblemState(metric=name, present=False, text=text)


@dataclass(slots=True)
class StaleTokens:
    """Finds stale tokens far from the trained policy in a run without a correction."""

    uncorrected: bool
    """Whether the run trains on stale tokens without a correction."""
    kind: NoticeKind = "stale_tokens"
    num_calm: int = WINDOW
    _num_far: dict[str, int] = field(default_factory=dict[str, int])
    """Steps in a row with such tokens."""

    def observe(self, step: int, metrics: Metrics) -> Iterator[ProblemState]:
        for name, mismatch in named(metrics, MISMATCH).items() if self.uncorrected else ():
            staleness = metrics.get(
                sibling_metric(name, MISMATCH, "staleness/mean"), metrics.get("staleness/mean", 0.0)
            )
            far = staleness > 0 and mismatch > _FAR
            self._num_far[name] = self._num_far.get(name, 0) + 1 if far else 0
            text = (
                f"tokens are {staleness:.2f} steps old and {mismatch:.2f} nats from the trained policy on average, "
                "and nothing corrects for it"
            )
            if not far or self._num_far[name] >= WINDOW:
                yield ProblemState(metric=name, present=far, text=text)
