"""Prediction of a run's steps: the real scheduler on virtual time with calibrated speeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from roll.config.schema import Run
from roll.plan.calibration import RunCalibration
from roll.plan.observations import RunObservations, StepSample
from roll.sim.batched import DecodeSpeed
from roll.sim.run import SimulationConfig, SimulationResult, simulate

_SIMULATED_TOKENS = 100
"""Simulated tokens per response: longer responses are simulated with tokens that represent several."""
_MOST_STEPS = 24
"""Most steps of the simulation of a whole run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSchedule:
    """Everything but the calibrated distributions that determines the duration of steps."""

    num_generators: int
    slots: int
    step_s: float
    """Decode step, without what depends on the running sequences."""
    sequence_s: float
    prefill_s: float
    update_s: float
    update_token_s: float
    publish_s: float
    other_s: float
    groups_per_step: int
    group_size: int
    max_staleness: float
    redundant_groups: int = 0
    redundant_siblings: int = 0
    concurrency: int | None = None
    """Most requests that a generator has at once; None: no limit."""
    shared: bool = False
    """Whether generators stop during updates."""
    num_devices: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPrediction:
    """Predicted durations of a step, in seconds."""

    step_s: float
    phases_s: Mapping[str, float]
    """`wait`, `update`, `publish`, `other`."""
    max_staleness: float
    """Greatest staleness of a trained token."""
    trainer_idle: float
    """Share of the time in which the trainer waits for groups."""
    slots_idle: float
    """Share of the slots of all generators that decode nothing, on average."""
    gpu_hours: float
    """Device hours per step."""
    error: float
    """Standard error relative to `step_s`, from the calibration and from the number of simulated steps."""

    @property
    def steps_per_hour(self) -> float:
        return 3600.0 / self.step_s


def schedule_of(run: Run, calibration: RunCalibration, observed: RunObservations) -> StepSchedule:
    """The schedule of the run that was calibrated."""
    concurrency = run.rollout.concurrency
    return StepSchedule(
        num_generators=observed.num_generators,
        slots=observed.slots,
        step_s=calibration.step_s.value,
        sequence_s=calibration.sequence_s.value,
        prefill_s=calibration.prefill_s.value,
        update_s=calibration.update_s.value,
        update_token_s=calibration.update_token_s.value,
        publish_s=calibration.publish_s.value,
        other_s=calibration.other_s.value,
        concurrency=concurrency if isinstance(concurrency, int) else None,
        shared=run.executor == "inline",
        **rollout_fields(run),
    )


def rollout_fields(run: Run) -> dict[str, Any]:
    """The fields of a schedule that are keys of the section `rollout`."""
    names = ("groups_per_step", "group_size", "max_staleness", "redundant_groups", "redundant_siblings")
    return {name: getattr(run.rollout, name) for name in names}


def predict_run(schedule: StepSchedule, calibration: RunCalibration, num_steps: int) -> StepPrediction:
    """The mean of the steps of a run of `num_steps` steps, without the first."""
    steps = min(num_steps, _MOST_STEPS)
    return _predict(schedule, calibration, steps=steps, first=min(1, steps - 1), last=steps)


def predict(
    schedule: StepSchedule, calibration: RunCalibration, *, num_steps: int = 5, seed: int = 0
) -> StepPrediction:
    """The mean of `num_steps` steps of a long run: after its start, and before generation ends."""
    ahead = math.ceil(schedule.max_staleness)
    first = 1 + ahead
    return _predict(
        schedule, calibration, steps=first + num_steps + ahead, first=first, last=first + num_steps, seed=seed
    )


def _predict(
    schedule: StepSchedule, calibration: RunCalibration, *, steps: int, first: int, last: int, seed: int = 0
) -> StepPrediction:
    result = simulate(_simulation(schedule, calibration, steps, seed))
    step_s = result.step_s(first, last)
    update_s = max(0.0, result.mean("time/update", first, last) - schedule.other_s)
    phases_s = {
        "wait": result.mean("time/wait", first, last),
        "update": update_s,
        "publish": result.mean("time/publish", first, last),
        "other": schedule.other_s,
    }
    capacity_s = result.elapsed_s * schedule.num_generators * schedule.slots
    return StepPrediction(
        step_s=step_s,
        phases_s=phases_s,
        max_staleness=result.max_token_staleness,
        trainer_idle=phases_s["wait"] / step_s,
        slots_idle=max(0.0, 1.0 - result.slot_s / capacity_s),
        gpu_hours=schedule.num_devices * step_s / 3600.0,
        error=_relative_error(schedule, calibration, phases_s, _noise(result, first, last)),
    )


def _simulation(schedule: StepSchedule, calibration: RunCalibration, steps: int, seed: int) -> SimulationConfig:
    mean = statistics.fmean(calibration.lengths[0])
    scale = max(1.0, mean / _SIMULATED_TOKENS)
    rollout = {"redundant_groups": schedule.redundant_groups, "redundant_siblings": schedule.redundant_siblings}
    request_s = calibration.request_s.value
    return SimulationConfig(
        steps=steps,
        lengths=calibration.turn_lengths,
        speed=DecodeSpeed(
            slots=schedule.slots,
            step_s=schedule.step_s,
            sequence_s=schedule.sequence_s,
            prefill_s=schedule.prefill_s,
            contexts=calibration.contexts,
            scale=scale,
            receive_s=schedule.publish_s,
        ),
        num_generators=schedule.num_generators,
        update_s=schedule.update_s + schedule.other_s,
        update_token_s=schedule.update_token_s * scale,
        shared=schedule.shared,
        groups_per_step=schedule.groups_per_step,
        group_size=schedule.group_size,
        max_staleness=schedule.max_staleness,
        env={
            "kind": "roll.sim.workload:RecordedEnv",
            "turns": calibration.turns,
            "waits_s": [wait + request_s for wait in calibration.waits_s],
            "ends_s": calibration.ends_s,
        },
        rollout=rollout,
        concurrency=schedule.concurrency,
        seed=seed,
    )


def _noise(result: SimulationResult, first: int, last: int) -> float:
    """Relative standard error of the mean simulated step."""
    ends = [0.0, *result.ends_s]
    durations = [ends[index + 1] - ends[index] for index in range(first, last)]
    if len(durations) < 2:
        return 0.0
    return statistics.stdev(durations) / len(durations) ** 0.5 / max(1e-12, statistics.fmean(durations))


def _relative_error(
    schedule: StepSchedule, calibration: RunCalibration, phases_s: Mapping[str, float], noise: float
) -> float:
    """Errors of the phases, independent of each other; that of the wait is the decode step's."""
    running = schedule.slots / 2
    parts = (calibration.step_s, 1.0), (calibration.sequence_s, running)
    decode_s = sum(part.value * weight for part, weight in parts)
    decode = math.sqrt(sum((part.value * weight * part.spread) ** 2 for part, weight in parts)) / max(1e-12, decode_s)
    update = max(calibration.update_s.spread, calibration.update_token_s.spread)
    errors = {
        "wait": decode,
        "update": update,
        "publish": calibration.publish_s.spread,
        "other": calibration.other_s.spread,
    }
    total_s = max(1e-12, sum(phases_s.values()))
    return math.sqrt(noise**2 + sum((phases_s[name] * errors[name] / total_s) ** 2 for name in errors))


def measured_phases(steps: tuple[StepSample, ...]) -> tuple[float, dict[str, float]]:
    """Mean seconds of a step and of its phases, without the first step if there are others."""
    used = steps[1:] or steps
    phases_s = {
        "wait": statistics.fmean(step.wait_s for step in used),
        "update": statistics.fmean(step.update_s for step in used),
        "publish": statistics.fmean(step.publish_s for step in used),
        "other": statistics.fmean(step.other_s + step.checkpoint_s + step.validate_s for step in used),
    }
    return statistics.fmean(step.total_s for step in used), phases_s
