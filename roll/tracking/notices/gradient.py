"""Detectors of updates that break a model: gradients that explode, and updates that are refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import fmean, median

from roll.config.notices import NoticeKind
from roll.tracking.notices.base import Metrics, ProblemState, named
from roll.tracking.notices.windows import NEWEST, Recent

_STEPS = 30
_MIN_STEPS = 10
"""Steps with a gradient that the newest are compared with."""
_MIN_GROWTH = 10.0
"""Growth over the median; single steps of good runs reach it, `NEWEST` in a row do not."""
_NUM_CALM_REFUSED = 10


@dataclass(slots=True)
class GradientGrowth:
    """Finds gradient norms of ten times their median, in several steps in a row.

    Steps with a norm of 0 are left out: their batch had no signal.
    """

    kind: NoticeKind = "gradient_growth"
    num_calm: int = NEWEST
    _norms: dict[str, Recent] = field(default_factory=dict[str, Recent])
    _usual: dict[str, float] = field(default_factory=dict[str, float])
    """Median before the growth that is still there, by metric."""

    def observe(self, step: int, metrics: Metrics) -> Iterator[ProblemState]:
        for name, norm in named(metrics, "loss/grad_norm", "critic/grad_norm").items():
            if norm <= 0:
                continue
            norms = self._norms.setdefault(name, Recent(_STEPS))
            norms.values.append(norm)
            if len(norms.values) >= _MIN_STEPS + NEWEST:
                yield self._check(name, norms)

    def _check(self, name: str, norms: Recent) -> ProblemState:
        usual = self._usual.get(name, median(norms.before(NEWEST)))
        newest = norms.last(NEWEST)
        text = f"the gradient norm is {fmean(newest):.3g} (mean of {NEWEST} steps), after a median of {usual:.3g}"
        present = min(newest) > (_MIN_GROWTH / 2 if name in self._usual else _MIN_GROWTH) * usual
        if present:
            self._usual[name] = usual
        else:
            self._usual.pop(name, None)
        return ProblemState(metric=name, present=present, text=text)


@dataclass(slots=True)
class RefusedUpdates:
    """Finds updates that were refused because the loss or the gradient was not finite."""

    kind: NoticeKind = "refused_updates"
    num_calm: int = _NUM_CALM_REFUSED

    def observe(self, step: int, metrics: Metrics) -> Iterator[ProblemState]:
        for name, count in named(metrics, "loss/refused", "critic/refused").items():
            text = (
                f"{count:.0f} of its updates were not finite and were refused" if count else "updates are finite again"
            )
            yield ProblemState(metric=name, present=count > 0, text=text)
