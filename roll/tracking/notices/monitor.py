"""All detectors of a run: each problem is reported once when it begins, and once when it is over."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from roll.config.notices import NoticeKind
from roll.tracking.notices.base import Detector, ProblemState
from roll.tracking.notices.gradient import GradientGrowth, RefusedUpdates
from roll.tracking.notices.length import LengthCollapse, LengthGrowth, Truncation
from roll.tracking.notices.policy import EntropyCollapse, KlGrowth
from roll.tracking.notices.reward import DomainBreak, RewardCollapse
from roll.tracking.notices.sampler import SamplerMismatch, StaleTokens
from roll.tracking.notices.signal import ConstantReward, NoSignal
from roll.tracking.notices.validation import ValidationFall


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A problem that begins or ends with a step."""

    kind: NoticeKind
    step: int
    metric: str
    """The metric that shows it; a policy's own has its name as prefix."""
    domain: str
    """Empty: of the whole run."""
    text: str
    since: int | None = None
    """The step at which a problem that ends now was reported; None: it begins."""


def build_detectors(*, uncorrected: bool, silenced: Collection[NoticeKind] = ()) -> list[Detector]:
    """One detector of each kind, without the silenced ones; `uncorrected`: stale tokens have no correction."""
    detectors: list[Detector] = [
        RewardCollapse(),
        DomainBreak(),
        ConstantReward(),
        NoSignal(),
        ValidationFall(),
        EntropyCollapse(),
        KlGrowth(),
        LengthGrowth(),
        LengthCollapse(),
        Truncation(),
        SamplerMismatch(),
        StaleTokens(uncorrected),
        GradientGrowth(),
        RefusedUpdates(),
    ]
    return [each for each in detectors if each.kind not in silenced]


@dataclass(slots=True)
class _Episode:
    """A problem that has been reported and is not over."""

    since: int
    num_calm: int = 0
    """Observations in a row without it."""


@dataclass(slots=True)
class NoticeMonitor:
    """Reports what the detectors find; a resumed run first gives it the metrics of earlier steps."""

    detectors: Sequence[Detector]
    _episodes: dict[tuple[NoticeKind, str], _Episode] = field(default_factory=dict[tuple[NoticeKind, str], _Episode])
    """By kind and metric."""

    def observe(self, step: int, metrics: Mapping[str, float | None]) -> list[Notice]:
        """What begins and what ends with this step; metrics that are null or not finite are left out."""
        values = {name: value for name, value in metrics.items() if value is not None and math.isfinite(value)}
        return [
            notice
            for detector in self.detectors
            for state in detector.observe(step, values)
            for notice in self._apply(detector, step, state)
        ]

    def _apply(self, detector: Detector, step: int, state: ProblemState) -> Iterator[Notice]:
        key = detector.kind, state.metric
        episode = self._episodes.get(key)
        if state.present:
            if episode is None:
                self._episodes[key] = _Episode(step)
                yield self._notice(detector.kind, step, state)
            else:
                episode.num_calm = 0
        elif episode is not None:
            episode.num_calm += 1
            if episode.num_calm >= detector.num_calm:
                del self._episodes[key]
                yield self._notice(detector.kind, step, state, since=episode.since)

    def _notice(self, kind: NoticeKind, step: int, state: ProblemState, since: int | None = None) -> Notice:
        return Notice(kind=kind, step=step, metric=state.metric, domain=state.domain, text=state.text, since=since)
