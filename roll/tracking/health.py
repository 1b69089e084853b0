"""Warnings computed from the metrics of a run: a reward that collapses, stale tokens without a correction."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean, pstdev

WINDOW = 5
"""Consecutive steps that a warning needs, and over which the best reward is averaged."""
_FAR = 0.2
"""Mean |trainer logprob - sampler logprob| in nats from which stale tokens are reported: a ratio of about 1.2."""
_SHOWN = ("loss/entropy", "kl/reference", "loss/kl", "loss/grad_norm", "loss/lr", "staleness/mean")
"""Metrics that a warning shows before and after a collapse."""
_CAUSES = (
    "usual causes: actor_train.optimizer.lr is too high, no algorithm.kl holds the policy near its reference, "
    "the entropy has collapsed (algorithm.entropy_coefficient)"
)


@dataclass(slots=True)
class RewardMonitor:
    """Detects a reward that has fallen far below its best, once per fall.

    The limit is below the best mean of five steps by half of it, by half of the gain since the first five steps, and by
    twice the standard deviation of the best five, whichever is most. The reward has collapsed if it is below the limit
    in five steps in a row. The next collapse is reported after it has recovered half of the distance.
    """

    best: float = float("-inf")
    best_step: int = 0
    mean: float = 0.0
    """Over the last five steps."""
    _first: float | None = None
    _margin: float = 0.0
    _recent: deque[float] = field(default_factory=lambda: deque[float](maxlen=WINDOW))
    _collapsed: bool = False

    def observe(self, step: int, reward: float) -> bool:
        """Add the mean reward of a step; whether the reward has collapsed with this one."""
        self._recent.append(reward)
        if len(self._recent) < WINDOW:
            return False
        self.mean = fmean(self._recent)
        self._first = self.mean if self._first is None else self._first
        if self.mean > self.best:
            self.best, self.best_step = self.mean, step
            self._margin = max(abs(self.best) / 2, (self.best - self._first) / 2, 2 * pstdev(self._recent))
        if self.mean >= self.best - self._margin / 2:
            self._collapsed = False
        below = self._margin > 0 and all(reward < self.best - self._margin for reward in self._recent)
        collapses, self._collapsed = below and not self._collapsed, below or self._collapsed
        return collapses


@dataclass(slots=True)
class HealthMonitor:
    """The warnings of each step, from its metrics."""

    uncorrected: bool
    """Whether stale tokens may be trained on without a correction."""
    _reward: RewardMonitor = field(default_factory=RewardMonitor)
    _at_best: Mapping[str, float] = field(default_factory=dict[str, float])
    """Metrics of the step with the best reward."""
    _num_far: int = 0
    """Steps in a row whose tokens are stale and far from the sampler."""

    def observe(self, step: int, metrics: Mapping[str, float | None]) -> list[str]:
        """Warnings to show after this step; metrics without a value are left out."""
        values = {name: value for name, value in metrics.items() if value is not None}
        return [*self._check_reward(step, values), *self._check_staleness(step, values)]

    def _check_reward(self, step: int, metrics: Mapping[str, float]) -> list[str]:
        if "reward/mean" not in metrics:
            return []
        collapsed = self._reward.observe(step, metrics["reward/mean"])
        if self._reward.best_step == step:
            self._at_best = metrics
        if not collapsed:
            return []
        reward, best = self._reward, self._at_best
        changes = [
            f"{name} {best[name]:.3g} -> {metrics[name]:.3g}" for name in _SHOWN if name in metrics and name in best
        ]
        stale = self.uncorrected and metrics.get("staleness/mean", 0.0) > 0
        advice = f"tokens are stale and uncorrected: set algorithm.correction; other {_CAUSES}" if stale else _CAUSES
        return [
            f"step {step}: the reward has fallen to {reward.mean:.3f}, from {reward.best:.3f} at step "
            f"{reward.best_step} (means of {WINDOW} steps); since then: {', '.join(changes) or 'nothing'}; {advice}"
        ]

    def _check_staleness(self, step: int, metrics: Mapping[str, float]) -> list[str]:
        staleness, mismatch = metrics.get("staleness/mean", 0.0), metrics.get("sampler_mismatch/mean", 0.0)
        far = self.uncorrected and staleness > 0 and mismatch > _FAR
        self._num_far = self._num_far + 1 if far else 0
        if self._num_far != WINDOW:
            return []
        return [
            f"step {step}: tokens are {staleness:.2f} steps old and {mismatch:.2f} nats from the trained policy on "
            f"average; nothing corrects for it: set algorithm.correction, or lower rollout.max_staleness"
        ]
