"""`roll plan --check`: what the model predicts for a run, against what happened."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from roll.plan.calibration import RunCalibration, calibrate
from roll.plan.observations import observe_run
from roll.plan.predict import StepPrediction, measured_phases, predict_run, schedule_of
from roll.report.report import table


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCheck:
    """Prediction and measurement of one run."""

    directory: str
    num_steps: int
    """Steps that were compared."""
    predicted: StepPrediction
    measured_s: float
    """Seconds per step."""
    measured_phases_s: dict[str, float]
    measured_staleness: float
    calibration: RunCalibration

    @property
    def error(self) -> float:
        """Relative error of the predicted step."""
        return self.predicted.step_s / self.measured_s - 1.0


def check_run_plan(directory: Path, source: Path | None = None) -> PlanCheck:
    """Compare the run in `directory` with the prediction from its own calibration, or from that of the run `source`."""
    run, observed = observe_run(directory)
    calibration = calibrate(observed if source is None else observe_run(source)[1])
    schedule = schedule_of(run, calibration, observed)
    measured_s, phases_s = measured_phases(observed.steps)
    return PlanCheck(
        directory=str(directory),
        num_steps=len(observed.steps[1:] or observed.steps),
        predicted=predict_run(schedule, calibration, len(observed.steps)),
        measured_s=measured_s,
        measured_phases_s=phases_s,
        measured_staleness=max(step.staleness for step in observed.steps),
        calibration=calibration,
    )


def format_check(check: PlanCheck) -> str:
    """The comparison phase by phase, then the calibrated speeds."""
    rows = [("seconds per step", "predicted", "measured", "error", "of the step")]
    pairs = [(name, spent, check.measured_phases_s[name]) for name, spent in check.predicted.phases_s.items()]
    for name, predicted, measured in [*pairs, ("step", check.predicted.step_s, check.measured_s)]:
        error = f"{100 * (predicted / measured - 1):+.0f} %" if measured > 1e-9 else "-"
        share = f"{100 * (predicted - measured) / check.measured_s:+.1f} %"
        rows.append((name, f"{predicted:.3f}", f"{measured:.3f}", error, share))
    head = f"{check.directory}: {check.num_steps} steps"
    staleness = (
        f"greatest staleness: predicted {check.predicted.max_staleness:g}, measured {check.measured_staleness:g}"
    )
    return "\n".join([head, *table(rows), staleness, "", *format_calibration(check.calibration)])


def format_calibration(calibration: RunCalibration) -> Iterator[str]:
    """The calibrated speeds with their units and how sure they are."""
    rows = [("calibrated", "value", "unit", "standard error")]
    rows += [(name, f"{each.value:.4g}", each.unit, each.confidence) for name, each in calibration.estimates().items()]
    yield from table(rows)
    turn = calibration.lengths[0]
    yield (
        f"lengths of the first turn: median {turn[len(turn) // 2]:.0f}, longest {turn[-1]:.0f} tokens; "
        f"{100 * calibration.censored:.1f} % reached max_new_tokens; siblings correlate by "
        f"{calibration.sibling_correlation:.2f}"
    )
