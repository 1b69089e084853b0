"""The search: an analytic estimate ranks all candidates, the best are simulated, then the neighbours of the best."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from roll.config.schema import Run
from roll.errors import ConfigError
from roll.plan.calibration import RunCalibration
from roll.plan.candidates import PlacedRun, PlanCandidate
from roll.plan.predict import StepPrediction, StepSchedule, predict, rollout_fields
from roll.plan.speeds import DeviceTimes

Goal = Literal["fastest", "cheapest"]
GOALS: tuple[Goal, ...] = ("fastest", "cheapest")
_PER_STALENESS, _NEIGHBOURS = 3, 24
"""Candidates per staleness that are simulated first, and most neighbours of the best after them."""
_DEVICES = 3
"""Dimensions of a placement that are numbers of devices: all, for training, and per generator."""
_LIMIT_S = 40.0
"""CPU time of a search."""
_LEAST_ATTEMPTS = 192
"""Attempts per step below which a simulation is not made smaller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RatedCandidate:
    """A candidate with the schedule of its steps and their estimated duration."""

    candidate: PlanCandidate
    schedule: StepSchedule
    estimate_s: float
    """From formulas; candidates with a low one are simulated."""
    prediction: StepPrediction | None = None

    def cost(self, goal: Goal) -> float:
        """Predicted or estimated seconds per step, or device hours."""
        seconds = self.estimate_s if self.prediction is None else self.prediction.step_s
        return seconds if goal == "fastest" else seconds * self.schedule.num_devices / 3600.0


def rate(
    run: Run,
    workload: RunCalibration,
    placed: Iterable[tuple[PlacedRun, DeviceTimes]],
    staleness: Sequence[float],
    redundancy: Sequence[int],
) -> list[RatedCandidate]:
    """All combinations with their estimates, lowest first."""
    estimator = _Estimator(workload)
    rated = list[RatedCandidate]()
    for placed_run, times in placed:
        for bound in staleness:
            for redundant in redundancy if bound > 0 else [0]:
                candidate = PlanCandidate(placed=placed_run, max_staleness=bound, redundant_groups=redundant)
                schedule = schedule_for(run, times, bound, redundant)
                estimate_s = estimator.step_s(schedule)
                rated.append(RatedCandidate(candidate=candidate, schedule=schedule, estimate_s=estimate_s))
    return sorted(rated, key=lambda each: each.estimate_s)


def schedule_for(run: Run, times: DeviceTimes, max_staleness: float, redundant_groups: int) -> StepSchedule:
    """The schedule of a configuration with these durations."""
    concurrency = run.rollout.concurrency
    fields: dict[str, Any] = rollout_fields(run)
    fields |= {"max_staleness": max_staleness, "redundant_groups": redundant_groups}
    return StepSchedule(
        num_generators=times.num_generators,
        slots=times.slots,
        step_s=times.step_s,
        sequence_s=times.sequence_s,
        prefill_s=times.prefill_s,
        update_s=times.update_s,
        update_token_s=times.update_token_s,
        publish_s=times.publish_s,
        other_s=times.other_s,
        concurrency=concurrency if isinstance(concurrency, int) else None,
        shared=times.shared or run.executor == "inline",
        num_devices=times.num_devices,
        **fields,
    )


class _Estimator:
    """Formulas for the duration of a step: the throughput of generators, the longest attempt, and the trainer."""

    def __init__(self, workload: RunCalibration) -> None:
        self._workload = workload
        self._tokens = workload.tokens_per_attempt
        self._turns = statistics.fmean(workload.turns)
        wait_s = statistics.fmean(workload.waits_s) + workload.request_s.value
        self._waits_s = self._turns * wait_s + statistics.fmean(workload.ends_s)
        self._prefill = self._turns * statistics.fmean(workload.contexts)

    def step_s(self, schedule: StepSchedule) -> float:
        """Seconds per step."""
        attempts = schedule.groups_per_step * schedule.group_size
        siblings = (schedule.group_size + schedule.redundant_siblings) / schedule.group_size
        ahead = 1 + schedule.max_staleness + schedule.redundant_groups / schedule.groups_per_step
        in_flight = attempts * siblings * ahead / schedule.num_generators
        running = max(1.0, min(schedule.slots, in_flight * self._share_decoding(schedule)))
        decode_s = schedule.step_s + running * schedule.sequence_s
        per_attempt = self._tokens * decode_s / running + self._prefill * schedule.prefill_s
        work_s = attempts * siblings * per_attempt / schedule.num_generators
        slowest_s = self._slowest_s(schedule, running)
        update_s = schedule.update_s + schedule.update_token_s * attempts * self._tokens
        rest_s = update_s + schedule.publish_s + schedule.other_s
        if schedule.max_staleness == 0:
            return max(work_s, slowest_s) + 0.3 * min(work_s, slowest_s) + rest_s
        bound_s = (slowest_s + rest_s) / ahead  # a slot is free again once the weights it helped to train are published
        if schedule.shared:
            return max(work_s + rest_s, bound_s)
        return max(work_s + schedule.publish_s, rest_s, bound_s)

    def _share_decoding(self, schedule: StepSchedule) -> float:
        """Share of an attempt's time in which it is on a generator."""
        decode_s = self._tokens * (schedule.step_s + schedule.slots / 2 * schedule.sequence_s)
        return decode_s / max(1e-9, decode_s + self._waits_s)

    def _slowest_s(self, schedule: StepSchedule, running: float) -> float:
        """The slowest attempt of a step: its tokens at half the usual number of sequences, and its waits."""
        longest = max(length[-1] for length in self._workload.lengths) + self._tokens * (self._turns - 1) / self._turns
        waits_s = self._waits_s + self._workload.waits_s[-1]
        return longest * (schedule.step_s + running / 2 * schedule.sequence_s) + waits_s


def _time_limit() -> Callable[[], bool]:
    end = time.process_time() + _LIMIT_S
    return lambda: time.process_time() < end


class PlanSearch:
    """Simulates candidates, each schedule once."""

    def __init__(
        self,
        workload: RunCalibration,
        rated: Sequence[RatedCandidate],
        goal: Goal,
        *,
        in_time: Callable[[], bool] | None = None,
        check: Callable[[PlanCandidate], None] = lambda candidate: None,
        simulation: Callable[[StepSchedule, RunCalibration], StepPrediction] | None = None,
    ) -> None:
        """`in_time` is false once the search should end; None: after some CPU time of this process.

        `check` raises `ConfigError` for a candidate that cannot be configured.
        """
        if not rated:
            raise ConfigError("roll plan: the bounds exclude every candidate; raise --budget or --max-staleness")
        self._workload, self._check, self._in_time = workload, check, in_time or _time_limit()
        self._goal: Goal = goal
        self._simulation = simulation or simulate_schedule
        self._rated = sorted(rated, key=self._order)
        self._by_schedule: dict[StepSchedule, StepPrediction] = {}
        self.faults: list[ConfigError] = []
        """Of candidates that cannot be configured."""
        self.complete = True
        """False if the time was over before all neighbours of the best had been simulated."""

    @property
    def num_simulated(self) -> int:
        return len(self._by_schedule)

    def run(self, advance: Callable[[int], None]) -> list[RatedCandidate]:
        """Simulate the candidates with the best estimates, then neighbours of the best until none is better."""
        done: dict[tuple[float, ...], RatedCandidate] = {}
        for rated in self._first():
            if not self._simulate(rated, done, advance):
                break
        if not done:
            raise self.faults[0]
        tried = set(done)
        most = len(tried) + _NEIGHBOURS
        while len(tried) < most and self.complete:
            best = min(done.values(), key=self._order)
            fresh = [each for each in self._neighbours(best) if _position(each.candidate) not in tried]
            fresh = fresh[: most - len(tried)]
            if not fresh:
                break
            for rated in fresh:
                tried.add(_position(rated.candidate))
                if not self._simulate(rated, done, advance):
                    break
        return sorted(done.values(), key=self._order)

    def _order(self, rated: RatedCandidate) -> tuple[float, ...]:
        """Of equally good candidates the one with fewer changes to the file, and the least staleness."""
        candidate = rated.candidate
        return (
            rated.cost(self._goal),
            candidate.redundant_groups,
            candidate.placed.num_changes,
            candidate.max_staleness,
        )

    def _first(self) -> list[RatedCandidate]:
        """For each staleness the best estimates with different devices or sizes, best first."""
        chosen: dict[tuple[float, ...], RatedCandidate] = {}
        for rated in self._rated:
            bound = rated.candidate.max_staleness
            same = sum(each.candidate.max_staleness == bound for each in chosen.values())
            if same < _PER_STALENESS:
                chosen.setdefault((bound, *rated.candidate.placed.kind[:_DEVICES]), rated)
        return list(chosen.values())

    def _simulate(
        self, rated: RatedCandidate, done: dict[tuple[float, ...], RatedCandidate], advance: Callable[[int], None]
    ) -> bool:
        try:
            self._check(rated.candidate)
        except ConfigError as fault:
            self.faults.append(fault)
            return True
        if rated.schedule not in self._by_schedule:
            if self._by_schedule and not self._in_time():
                self.complete = False
                return False
            self._by_schedule[rated.schedule] = self._simulation(rated.schedule, self._workload)
            advance(1)
        done[_position(rated.candidate)] = replace(rated, prediction=self._by_schedule[rated.schedule])
        return True

    def _neighbours(self, best: RatedCandidate) -> list[RatedCandidate]:
        """Candidates with the next lower or higher value along one dimension and equal values along all others."""
        centre = _position(best.candidate)
        nearest: dict[tuple[int, bool], tuple[float, RatedCandidate]] = {}
        for rated in self._rated:
            position = _position(rated.candidate)
            different = [index for index, value in enumerate(position) if value != centre[index]]
            if len(different) != 1:
                continue
            (index,) = different
            distance = abs(position[index] - centre[index])
            side = (index, position[index] > centre[index])
            if side not in nearest or distance < nearest[side][0]:
                nearest[side] = distance, rated
        return [rated for _, rated in nearest.values()]


def _position(candidate: PlanCandidate) -> tuple[float, ...]:
    """What distinguishes candidates, one number per dimension."""
    return (*candidate.placed.kind, candidate.max_staleness, candidate.redundant_groups)


def simulate_schedule(schedule: StepSchedule, workload: RunCalibration) -> StepPrediction:
    """The prediction of a schedule, from a part of its generators and groups where that has attempts enough."""
    part = _fold(schedule)
    smaller = replace(
        schedule,
        num_generators=schedule.num_generators // part,
        groups_per_step=schedule.groups_per_step // part,
        redundant_groups=schedule.redundant_groups // part,
        update_token_s=schedule.update_token_s * part,
    )
    return predict(smaller, workload)


def _fold(schedule: StepSchedule) -> int:
    """The largest divisor of generators and groups that leaves enough attempts per step."""
    common = math.gcd(schedule.num_generators, schedule.groups_per_step, schedule.redundant_groups)
    attempts = schedule.groups_per_step * schedule.group_size
    fitting = [part for part in range(1, common + 1) if common % part == 0 and attempts // part >= _LEAST_ATTEMPTS]
    return max(fitting, default=1)


def frontier(results: Sequence[RatedCandidate]) -> list[RatedCandidate]:
    """The candidates that no other beats in steps per hour, device hours and staleness, fastest first."""

    def values(rated: RatedCandidate) -> tuple[float, float, float]:
        assert rated.prediction is not None
        return rated.prediction.step_s, rated.prediction.gpu_hours, rated.candidate.max_staleness

    undominated = [
        each
        for each in results
        if not any(
            all(theirs <= ours for theirs, ours in zip(values(other), values(each), strict=True))
            and values(other) != values(each)
            for other in results
        )
    ]
    unique = {values(each): each for each in reversed(undominated)}
    return sorted(unique.values(), key=values)
