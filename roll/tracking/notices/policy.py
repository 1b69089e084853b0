"""Detectors of a policy that leaves its path: entropy that vanishes, distance to the reference that explodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import fmean, median

from roll.config.notices import NoticeKind
from roll.tracking.notices.base import Metrics, ProblemState, named
from roll.tracking.notices.windows import NEWEST, WINDOW, Gain, Recent

_MIN_ENTROPY = 0.1
"""Fraction of the highest entropy of the run below which it has collapsed; runs that learn keep a fifth and more
until they have solved their tasks."""
_MIN_UNIFORM = 0.8
"""Fraction of groups with equal rewards from which a policy without entropy no longer explores."""
_MIN_SPREAD = 0.5
"""Standard deviation of the rewards, relative to the largest, from which tasks are left to learn."""


@dataclass(slots=True)
class _Entropy:
    """The entropy of one policy."""

    values: Recent = field(default_factory=lambda: Recent(WINDOW))
    highest: float = 0.0
    highest_step: int = 0
    reward: float | None = None
    """Mean reward over the window with the highest entropy."""


@dataclass(slots=True)
class EntropyCollapse:
    """Finds an entropy far below its highest value, if the reward has not gained from it or has stopped to.

    Entropy falls in every run that learns, down to almost nothing once the tasks are solved.
    """

    kind: NoticeKind = "entropy_collapse"
    num_calm: int = NEWEST
    _policies: dict[str, _Entropy] = field(default_factory=dict[str, _Entropy])
    _gain: Gain = field(default_factory=Gain)
    _uniform: Recent = field(default_factory=lambda: Recent(WINDOW))
    _spread: Recent = field(default_factory=lambda: Recent(WINDOW))
    _largest_spread: float = 0.0

    def observe(self, step: int, metrics: Metrics) -> Iterator[ProblemState]:
        self._gain.observe(metrics.get("reward/mean"))
        self._uniform.values.append(metrics.get("trained/uniform", 0.0))
        self._spread.values.append(metrics.get("reward/std", 0.0))
        self._largest_spread = max(self._largest_spread, fmean(self._spread.values))
        for name, value in named(metrics, "loss/entropy").items():
            yield from self._check(step, name, value)

    def _check(self, step: int, name: str, value: float) -> Iterator[ProblemState]:
        policy = self._policies.setdefault(name, _Entropy())
        policy.values.values.append(value)
        mean = fmean(policy.values.values)
        if mean > policy.highest:
            policy.highest, policy.highest_step, policy.reward = mean, step, self._gain.mean()
        if len(policy.values.values) < WINDOW:
            return
        if mean >= 2 * _MIN_ENTROPY * policy.highest:
            yield ProblemState(metric=name, present=False, text=f"the entropy is {mean:.3g} nats again")
        elif mean < _MIN_ENTROPY * policy.highest and (reason := self._reason(policy)):
            fell = f"the entropy fell from {policy.highest:.3g} nats at step {policy.highest_step} to {mean:.3g}"
            yield ProblemState(metric=name, present=True, text=f"{fell}; {reason}")

    def _reason(self, policy: _Entropy) -> str:
        """Why this is no success; empty if it may be one."""
        now = self._gain.mean()
        if now is None:
            return "there is no reward to gain from it"
        if not self._gain.improved(policy.reward, WINDOW):
            return f"the reward went from {policy.reward or 0.0:.3f} to {now:.3f}"
        uniform, spread = fmean(self._uniform.values), fmean(self._spread.values)
        if uniform >= _MIN_UNIFORM and spread >= _MIN_SPREAD * self._largest_spread > 0:
            return f"{uniform:.0%} of the groups have equal rewards, at a mean reward of {now:.3f}"
        return ""


_KL_STEPS = 20
_MIN_KL = 0.5
"""Nats per token from which a growth counts; below it, the policy samples mostly what its reference would."""
_MIN_KL_GROWTH = 5.0
"""Growth within the newest steps. From 0 at the first step, KL grows ever more slowly in runs that learn."""


@dataclass(slots=True)
class KlGrowth:
    """Finds a KL to the reference that is large, and several times what it was a few steps ago."""

    kind: NoticeKind = "kl_growth"
    num_calm: int = NEWEST
    _values: dict[str, Recent] = field(default_factory=dict[str, Recent])
    _limits: dict[str, float] = field(default_factory=dict[str, float])
    """KL up to which a growth is not over, by metric."""

    def observe(self, step: int, metrics: Metrics) -> Iterator[ProblemState]:
        for name, value in (named(metrics, "kl/reference") or named(metrics, "loss/kl")).items():
            recent = self._values.setdefault(name, Recent(_KL_STEPS))
            recent.values.append(value)
            if len(recent.values) >= WINDOW + NEWEST:
                yield from self._check(name, recent)

    def _check(self, name: str, recent: Recent) -> Iterator[ProblemState]:
        newest, before = recent.last(NEWEST), median(recent.before(NEWEST))
        limit = self._limits.get(name)
        if limit is None and min(newest) > max(_MIN_KL, _MIN_KL_GROWTH * before):
            limit = self._limits[name] = max(_MIN_KL, _MIN_KL_GROWTH * before)
        if limit is not None and min(newest) > limit:
            text = f"the KL to the reference is {fmean(newest):.3g} nats per token (mean of {NEWEST} steps)"
            yield ProblemState(metric=name, present=True, text=f"{text}, after a median of {before:.3g}")
        elif limit is None or max(newest) < limit:
            self._limits.pop(name, None)
            yield ProblemState(metric=name, present=False, text=f"the KL is {fmean(newest):.3g} nats per token again")
