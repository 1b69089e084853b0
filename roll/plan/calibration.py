"""Speeds and distributions of a run, from its observations: what a simulation needs to predict others."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from roll.plan.decode_fit import DecodeFit, fit_decode
from roll.plan.observations import AttemptSample, RunObservations, StepSample
from roll.sim.workload import TurnLengths

_QUANTILES = 256
"""Most values that represent a distribution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A measured quantity and how sure it is."""

    value: float
    unit: str
    count: int
    """Number of observations; 0: stated, not measured."""
    spread: float
    """Standard error relative to the value; for a distribution, that of its mean."""

    @property
    def confidence(self) -> str:
        """The spread in words."""
        if not self.count:
            return "stated"
        return f"{100 * self.spread:.0f} % from {self.count}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCalibration:
    """All speeds and distributions of one run on its devices."""

    lengths: tuple[tuple[float, ...], ...]
    """Tokens per response, by turn, in increasing order."""
    sibling_correlation: float
    contexts: tuple[float, ...]
    """Mean tokens before the response, by turn."""
    turns: tuple[int, ...]
    """Turns per attempt, one value per attempt."""
    waits_s: tuple[float, ...]
    """Latency of the environment per turn."""
    ends_s: tuple[float, ...]
    """Seconds of an attempt outside its turns: start, reward, controller."""
    censored: float
    """Share of responses that reached `max_new_tokens`."""
    slots: int
    """Sequences that a generator decodes at once."""
    step_s: Estimate
    """Fixed part of a decode step."""
    sequence_s: Estimate
    """Additional part per running sequence."""
    prefill_s: Estimate
    """Per token of a context."""
    request_s: Estimate
    """Per request, outside the generator's work."""
    update_s: Estimate
    """Fixed part of scores and update."""
    update_token_s: Estimate
    """Additional part per sampled token."""
    publish_s: Estimate
    other_s: Estimate
    """Per step: checkpoint, validation, and the controller between phases."""

    @property
    def turn_lengths(self) -> TurnLengths:
        return TurnLengths(observed=self.lengths, sibling_correlation=self.sibling_correlation)

    @property
    def tokens_per_attempt(self) -> float:
        """Mean sampled tokens of an attempt."""
        return sum(
            statistics.fmean(self.lengths[min(turn, len(self.lengths) - 1)])
            * sum(turn < num for num in self.turns)
            / len(self.turns)
            for turn in range(max(self.turns))
        )

    def estimates(self) -> dict[str, Estimate]:
        """All single numbers by name."""
        names = ("step_s", "sequence_s", "prefill_s", "request_s", "update_s", "update_token_s", "publish_s", "other_s")
        return {name: getattr(self, name) for name in names}


def calibrate(observed: RunObservations) -> RunCalibration:
    """The calibration of a run. The first step is left out if there are others: it warms up."""
    steps = observed.steps[1:] or observed.steps
    decode = fit_decode(observed.turns, num_generators=observed.num_generators, slots=observed.slots)
    update_s, update_token_s = _fit_update(steps)
    by_turn: dict[int, list[int]] = defaultdict(list)
    for attempt in observed.attempts:
        for turn, length in enumerate(attempt.lengths):
            by_turn[turn].append(length)
    contexts: dict[int, list[int]] = defaultdict(list)
    for turn in observed.turns:
        contexts[turn.turn].append(turn.context)
    return RunCalibration(
        lengths=tuple(_sorted_quantiles(by_turn[turn]) for turn in sorted(by_turn)),
        sibling_correlation=_sibling_correlation(observed.attempts),
        contexts=tuple(statistics.fmean(contexts[turn]) for turn in sorted(contexts)),
        turns=tuple(int(num) for num in _sorted_quantiles(len(each.lengths) for each in observed.attempts)),
        waits_s=_sorted_quantiles(wait for each in observed.attempts for wait in each.waits_s),
        ends_s=_sorted_quantiles(each.rest_s for each in observed.attempts),
        censored=statistics.fmean(turn.censored for turn in observed.turns),
        slots=observed.slots,
        **_decode_estimates(decode),
        update_s=update_s,
        update_token_s=update_token_s,
        publish_s=_mean_of(steps, lambda step: step.publish_s),
        other_s=_mean_of(steps, lambda step: step.other_s + step.checkpoint_s + step.validate_s),
    )


def _decode_estimates(fit: DecodeFit) -> dict[str, Estimate]:
    units = {"step_s": "s/step", "sequence_s": "s/step/sequence", "prefill_s": "s/token", "request_s": "s/request"}
    return {
        name: Estimate(value=value, unit=units[name], count=fit.count, spread=error / value if value else 0.0)
        for name, value, error in zip(units, fit.values, fit.errors, strict=True)
    }


def _sorted_quantiles(values: Iterable[float]) -> tuple[float, ...]:
    """The values in order, or evenly spaced quantiles if there are many."""
    ordered = sorted(values)
    if len(ordered) <= _QUANTILES:
        return tuple(ordered)
    return tuple(ordered[int((index + 0.5) * len(ordered) / _QUANTILES)] for index in range(_QUANTILES))


def _mean_of(steps: Sequence[StepSample], value: Callable[[StepSample], float]) -> Estimate:
    """The mean over steps, without outliers if there are enough."""
    values = sorted(map(value, steps))
    return _estimate(values, "s/step")


def _estimate(values: Sequence[float], unit: str) -> Estimate:
    mean = statistics.fmean(values)
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else mean
    return Estimate(value=mean, unit=unit, count=len(values), spread=error / mean if mean else 0.0)


def _fit_update(steps: Sequence[StepSample]) -> tuple[Estimate, Estimate]:
    """Fixed and per-token time of updates. Where tokens hardly vary, all of the time is per token."""
    tokens = np.array([step.num_tokens for step in steps], float)
    seconds = np.array([step.update_s for step in steps], float)
    count, fixed = len(steps), 0.0
    slope = float(seconds.sum() / max(1.0, tokens.sum()))
    error = float(np.std(seconds - slope * tokens) / count**0.5 / max(1.0, tokens.mean()))
    if count >= 8 and tokens.std() > 0.05 * tokens.mean():
        fitted, start = np.polyfit(tokens, seconds, 1)
        if fitted > 0 and start > 0:
            slope, fixed = float(fitted), float(start)
            error = float(np.std(seconds - fixed - slope * tokens) / tokens.std() / count**0.5)
    return (
        Estimate(
            value=fixed, unit="s/step", count=count, spread=error * float(tokens.mean()) / fixed if fixed else 0.0
        ),
        Estimate(value=slope, unit="s/token", count=count, spread=error / slope if slope else 0.0),
    )


def _sibling_correlation(attempts: Sequence[AttemptSample]) -> float:
    """Correlation of the lengths of siblings, as the share of variance between groups of log lengths."""
    groups: dict[int, list[float]] = defaultdict(list)
    for attempt in attempts:
        groups[attempt.group].append(float(np.log(max(1, sum(attempt.lengths)))))
    several = [values for values in groups.values() if len(values) > 1]
    if len(several) < 4:
        return 0.0
    within = statistics.fmean(statistics.variance(values) for values in several)
    size = statistics.fmean(len(values) for values in several)
    between = statistics.variance([statistics.fmean(values) for values in several]) - within / size
    return max(0.0, min(0.95, between / (between + within))) if between + within > 0 else 0.0
