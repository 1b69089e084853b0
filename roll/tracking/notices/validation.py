"""Detector of held-out rewards that fall."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from roll.config.notices import NoticeKind
from roll.tracking.notices.base import Metrics, ProblemState
from roll.tracking.notices.windows import SIGNIFICANT

_REWARD = re.compile(r"validation/(?:(.+)/)?reward")
_MIN_FALL = 0.1
"""Least fall, as a fraction of the best."""
_SIGNIFICANT_TWICE = 3.0
"""Least fall of two validations in a row, in standard deviations of the difference of two means."""


@dataclass(slots=True)
class _HeldOut:
    """The validations of one source, or of all."""

    best: float = -math.inf
    best_error: float = 0.0
    best_step: int = 0
    low: bool = False
    """Whether the last validation was low already."""
    fallen: bool = False


@dataclass(slots=True)
class ValidationFall:
    """Finds a held-out reward below its best by more than the number of held-out tasks explains."""

    kind: NoticeKind = "validation_fall"
    num_calm: int = 1
    _sources: dict[str, _HeldOut] = field(default_factory=dict[str, _HeldOut])

    def observe(self, step: int, metrics: Metrics) -> Iterator[ProblemState]:
        for name, reward in metrics.items():
            match = _REWARD.fullmatch(name)
            prefix = name.removesuffix("reward")
            deviation, num_tasks = metrics.get(f"{prefix}std"), metrics.get(f"{prefix}tasks")
            if match and deviation is not None and num_tasks:
                yield from self._check(step, name, reward, deviation / math.sqrt(num_tasks))

    def _check(self, step: int, name: str, reward: float, error: float) -> Iterator[ProblemState]:
        source = self._sources.setdefault(name, _HeldOut())
        if reward > source.best:
            source.best, source.best_error, source.best_step = reward, error, step
        fall, deviation = source.best - reward, math.hypot(error, source.best_error)
        large = fall > _MIN_FALL * abs(source.best)
        low = large and fall > _SIGNIFICANT_TWICE * deviation
        present = low and (source.fallen or source.low or fall > SIGNIFICANT * deviation)
        source.low, source.fallen = low, present or (source.fallen and low)
        domain = name.removeprefix("validation/").removesuffix("reward").removesuffix("/")
        text = f"the held-out reward is {reward:.3f}, after {source.best:.3f} at step {source.best_step}"
        if present or not low:
            yield ProblemState(metric=name, domain=domain, present=present, text=f"{text} (standard error {error:.3f})")
