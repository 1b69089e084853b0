"""Means over windows of steps, and the noise of a series: what detectors compare the newest steps with."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean

WINDOW = 5
"""Steps of one mean: enough to average the noise of small batches, few enough to notice a fall at once."""
NEWEST = 3
"""Newest steps that must all show a change: one bad batch is no problem."""
SIGNIFICANT = 4.0
"""Least change in standard deviations of the difference of two means: windows are compared in every step of a run, and
the best or lowest of many windows is so by chance."""
_NOISE_STEPS = 20
_MEAN_DIFFERENCE = 2 / math.sqrt(math.pi)
"""Mean distance of two draws of a normal distribution, in standard deviations: 1.128."""


def noise(values: Sequence[float]) -> float:
    """Standard deviation of one step, from the differences of adjacent steps: a slow trend adds nothing to it."""
    differences = [abs(after - before) for before, after in pairwise(values)]
    return fmean(differences) / _MEAN_DIFFERENCE if differences else 0.0


def noise_of_difference(deviation: float, num_before: int, num_after: int) -> float:
    """Standard deviation of the difference of the means of `num_before` and `num_after` steps."""
    return deviation * math.sqrt(1 / num_before + 1 / num_after)


@dataclass(slots=True)
class Recent:
    """The newest values of a series."""

    length: int
    values: deque[float] = field(init=False)

    def __post_init__(self) -> None:
        self.values = deque(maxlen=self.length)

    def last(self, num: int) -> list[float]:
        """The newest values, at most `num` of them."""
        return list(self.values)[-num:]

    def before(self, num: int) -> list[float]:
        """The values without the newest `num`."""
        return list(self.values)[:-num]


def error_of_mean(errors: Sequence[float]) -> float:
    """Standard error of the mean of several steps, from the standard errors of each."""
    return math.sqrt(sum(error**2 for error in errors)) / len(errors) if errors else 0.0


@dataclass(slots=True)
class Fall:
    """Detects a mean that has fallen far below the best mean of the series.

    The margin is the larger of a third of the best and half of the gain since the first steps: rewards of runs that
    learn fall by up to a sixth for a while. The fall must also be four times its noise. The noise is measured up to the
    best step, from the differences of adjacent steps or from their standard errors, whichever are larger. With standard
    errors, the first steps already have a mean: a learning rate that is far too high leaves only one good step.
    """

    best: float = -math.inf
    best_step: int = 0
    mean: float = 0.0
    """Over the newest steps."""
    margin: float = 0.0
    _noise: float = 0.0
    """Standard deviation of the difference of the best mean and a later one."""
    _first: float | None = None
    _recent: Recent = field(default_factory=lambda: Recent(_NOISE_STEPS))
    _errors: Recent = field(default_factory=lambda: Recent(_NOISE_STEPS))

    def observe(self, step: int, value: float, error: float = 0.0) -> bool | None:
        """Add a step's value with its standard error. True: it has fallen, False: it has not, None: in between."""
        self._recent.values.append(value)
        self._errors.values.append(error)
        window = self._recent.last(WINDOW)
        if len(window) < WINDOW and error == 0.0:
            return False
        self.mean = fmean(window)
        if len(window) == WINDOW and self._first is None:
            self._first = self.mean
        if self.mean > self.best:
            self.best, self.best_step = self.mean, step
            errors = self._errors.last(_NOISE_STEPS)
            deviation = max(noise(self._recent.last(_NOISE_STEPS)), error_of_mean(errors) * math.sqrt(len(errors)))
            self._noise = noise_of_difference(deviation, len(window), WINDOW)
            gain = 0.0 if self._first is None else self.best - self._first
            self.margin = max(abs(self.best) / 3, gain / 2)
        limit = self.best - self.margin
        low = self.mean < limit and all(value < limit for value in window[-NEWEST:])
        if low and len(window) == WINDOW and self.best - self.mean > SIGNIFICANT * self._noise:
            return True
        return False if self.mean >= self.best - self.margin / 2 else None


@dataclass(slots=True)
class Gain:
    """Whether the reward has improved between two windows: then a change pays."""

    _recent: Recent = field(default_factory=lambda: Recent(_NOISE_STEPS))

    def observe(self, reward: float | None) -> None:
        """Add the mean reward of a step; None for a step without one."""
        if reward is not None:
            self._recent.values.append(reward)

    def mean(self, num: int = WINDOW) -> float | None:
        """Mean over the newest steps; None without rewards."""
        values = self._recent.last(num)
        return fmean(values) if values else None

    def improved(self, before: float | None, num: int) -> bool:
        """Whether the mean of the newest `num` steps is above `before`, a mean over a window.

        It is above it by a hundredth and by twice its noise at least.
        """
        now = self.mean(num)
        if before is None or now is None:
            return False
        deviation = noise_of_difference(noise(self._recent.last(_NOISE_STEPS)), WINDOW, num)
        return now - before > max(2 * deviation, abs(before) / 100)
