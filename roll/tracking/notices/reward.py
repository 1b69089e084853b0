"""Detectors of a reward that falls: of the whole run, or of one domain alone."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from statistics import fmean

from roll.config.notices import NoticeKind
from roll.tracking.notices.base import Metrics, ProblemState, reward_error
from roll.tracking.notices.windows import (
    NEWEST,
    SIGNIFICANT,
    WINDOW,
    Fall,
    Recent,
    error_of_mean,
    noise,
    noise_of_difference,
)

REWARD = "reward/mean"
DOMAIN = re.compile(r"domain/(.+)/reward")
_CHANGES = ("loss/entropy", "kl/reference", "loss/kl", "loss/grad_norm", "loss/lr", "length/mean", "staleness/mean")
"""Metrics whose change since the best reward is shown."""
_MAX_DOMAINS = 4
"""Most domains whose rewards are shown as well."""
_BEFORE = 10
"""Steps that a sudden change in a domain is compared with."""
_MIN_CHANGE = 1 / 3
"""Least sudden change, as a fraction of the reward before or of the spread of single rewards."""
_JUMP = 6.0
"""Least sudden rise, in standard deviations of one step: learning is slower than that."""
_MAX_OTHERS = 0.5
"""A domain breaks alone if the others change by less than this fraction of that change."""


@dataclass(slots=True)
class RewardCollapse:
    """Finds a mean reward far below its best."""

    kind: NoticeKind = "reward_collapse"
    num_calm: int = NEWEST
    _fall: Fall = field(default_factory=Fall)
    _at_best: Metrics = field(default_factory=dict[str, float])

    def observe(self, step: int, metrics: Metrics) -> Iterator[ProblemState]:
        if REWARD not in metrics:
            return
        error = reward_error(metrics, "reward/std", "trained/groups")
        fallen = self._fall.observe(step, metrics[REWARD], error)
        if self._fall.best_step == step:
            self._at_best = metrics
        if fallen is None:
            return
        before, changes = self._fall, self._changes(metrics) if fallen else ""
        fell = (
            f"the reward fell to {before.mean:.3f}, from {before.best:.3f} at step {before.best_step} "
            f"(means of up to {WINDOW} steps){changes}"
        )
        text = fell if fallen else f"the reward is {before.mean:.3f} again"
        yield ProblemState(metric=REWARD, present=fallen, text=text)

    def _changes(self, metrics: Metrics) -> str:
        domains = [name for name in metrics if DOMAIN.fullmatch(name)]
        names = [*_CHANGES, *(sorted(domains) if 1 < len(domains) <= _MAX_DOMAINS else ())]
        both = [name for name in names if name in metrics and name in self._at_best]
        changes = [f"{name} {self._at_best[name]:.3g} -> {metrics[name]:.3g}" for name in both]
        return f"; since then {', '.join(changes)}" if changes else ""


@dataclass(slots=True)
class _Domain:
    """The rewards of one domain, in the steps that have it."""

    rewards: Recent = field(default_factory=lambda: Recent(_BEFORE + NEWEST))
    spreads: Recent = field(default_factory=lambda: Recent(_BEFORE + NEWEST))
    """Standard deviations of single rewards."""
    errors: Recent = field(default_factory=lambda: Recent(_BEFORE + NEWEST))
    """Standard errors of the rewards of the steps."""
    fall: Fall = field(default_factory=Fall)
    fallen: bool | None = False
    before: float | None = None
    """Mean reward before the sudden change that is still there."""
    change: float = 0.0
    since: int = 0

    def add(self, step: int, reward: float, spread: float, error: float) -> None:
        """Add the reward of a step."""
        self.rewards.values.append(reward)
        self.spreads.values.append(spread)
        self.errors.values.append(error)
        self.fallen = self.fall.observe(step, reward, error)

    @property
    def known(self) -> bool:
        """Whether there are enough steps to compare."""
        return len(self.rewards.values) >= WINDOW + NEWEST

    @property
    def scale(self) -> float:
        """A large reward of the domain, positive."""
        return max(abs(fmean(self.rewards.before(NEWEST))), *self.spreads.values)

    @property
    def relative_change(self) -> float:
        """From the steps before to the newest ones, in units of `scale`."""
        change = fmean(self.rewards.last(NEWEST)) - fmean(self.rewards.before(NEWEST))
        return change / self.scale if self.scale else 0.0

    def sudden(self) -> bool:
        """Whether the newest rewards are all far from those before, and a rise came within one step."""
        before, newest = self.rewards.before(NEWEST), self.rewards.last(NEWEST)
        mean, deviation = fmean(before), noise(before)
        change = fmean(newest) - mean
        error_before = error_of_mean(self.errors.before(NEWEST))
        errors = [
            noise_of_difference(deviation, len(before), NEWEST),
            noise_of_difference(error_before * math.sqrt(len(before)), len(before), NEWEST),  # rewards may all be 0 now
            math.hypot(error_before, error_of_mean(self.errors.last(NEWEST))),
        ]
        least_significant = SIGNIFICANT * max(errors)
        least = max(_MIN_CHANGE * self.scale, least_significant)
        if abs(change) <= least or any((reward - mean) * change <= least * abs(change) / 2 for reward in newest):
            return False
        return change < 0 or newest[0] - max(before) > max(_JUMP * deviation, self.scale / 2)


@dataclass(slots=True)
class DomainBreak:
    """Finds a domain whose reward changes suddenly, or falls far below its best, alone."""

    kind: NoticeKind = "domain_break"
    num_calm: int = NEWEST
    _domains: dict[str, _Domain] = field(default_factory=dict[str, _Domain])

    def observe(self, step: int, metrics: Metrics) -> Iterator[ProblemState]:
        rewards = {match[1]: value for name, value in metrics.items() if (match := DOMAIN.fullmatch(name))}
        for name, reward in rewards.items():
            deviation, groups = f"domain/{name}/std", f"domain/{name}/groups"
            error = reward_error(metrics, deviation, groups)
            self._domains.setdefault(name, _Domain()).add(step, reward, metrics.get(deviation, 0.0), error)
        others = {name: each for name, each in self._domains.items() if each.known}
        for name in rewards:
            if name in others and len(others) > 1:
                yield from self._check(name, others, step)

    def _check(self, name: str, known: Mapping[str, _Domain], step: int) -> Iterator[ProblemState]:
        domain, metric = known[name], f"domain/{name}/reward"
        if domain.before is not None:
            mean = fmean(domain.rewards.last(NEWEST))
            present = abs(mean - domain.before) > abs(domain.change) / 2
            if not present:
                domain.before = None
            text = self._text(name, mean, domain) if present else f"the reward is {mean:.3f} again"
            yield ProblemState(metric=metric, domain=name, present=present, text=text)
        elif domain.sudden() and self._alone(name, known):
            domain.before = fmean(domain.rewards.before(NEWEST))
            mean = fmean(domain.rewards.last(NEWEST))
            domain.change, domain.since = mean - domain.before, step - NEWEST + 1
            yield ProblemState(metric=metric, domain=name, present=True, text=self._text(name, mean, domain))
        elif domain.fallen and not any(each.fallen for other, each in known.items() if other != name):
            fall = domain.fall
            text = f"its reward fell to {fall.mean:.3f}, from {fall.best:.3f} at step {fall.best_step}"
            yield ProblemState(metric=metric, domain=name, present=True, text=f"{text}, and no other domain fell")
        elif domain.fallen is False:
            text = f"the reward is {domain.fall.mean:.3f} again"
            yield ProblemState(metric=metric, domain=name, present=False, text=text)

    def _text(self, name: str, mean: float, domain: _Domain) -> str:
        others = [fmean(each.rewards.last(NEWEST)) for other, each in self._domains.items() if other != name]
        verb = "fell" if domain.change < 0 else "jumped"
        return (
            f"its reward {verb} from {domain.before:.3f} to {mean:.3f} (mean of {NEWEST} steps), since about step "
            f"{domain.since}; the mean reward of the other domains is {fmean(others):.3f}"
        )

    def _alone(self, name: str, known: Mapping[str, _Domain]) -> bool:
        """Whether the other domains, on average, did not change in the same way."""
        change = known[name].relative_change
        others = fmean(each.relative_change for other, each in known.items() if other != name)
        return others / change < _MAX_OTHERS
