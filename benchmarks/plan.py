"""Predictions of `roll plan` against real runs over Ray on the CPU, and its search against an exhaustive one."""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import typer

from benchmarks.plan_workloads import WORKLOADS, compare_search
from benchmarks.result import Result
from roll.plan.calibration import RunCalibration, calibrate
from roll.plan.observations import observe_run
from roll.plan.predict import measured_phases, predict_run, schedule_of

ERROR, MEDIAN, REGRET, SECONDS = 0.15, 0.08, 0.05, 60.0
STEPS, SIGMA = 10, 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class RealRun:
    """What varies between the real runs."""

    groups: int
    siblings: int
    staleness: float
    wait_s: float
    """Median latency of the environment per turn."""
    turns: int
    generators: int = 1


RUNS = {
    "small": RealRun(groups=8, siblings=4, staleness=0.0, wait_s=0.2, turns=2),
    "large": RealRun(groups=16, siblings=8, staleness=0.0, wait_s=0.4, turns=2),
    "one ahead": RealRun(groups=8, siblings=8, staleness=1.0, wait_s=0.3, turns=3),
    "two ahead": RealRun(groups=12, siblings=8, staleness=2.0, wait_s=0.6, turns=2),
    "slow environments": RealRun(groups=8, siblings=4, staleness=1.0, wait_s=1.2, turns=3),
    "two generators": RealRun(groups=16, siblings=4, staleness=0.0, wait_s=0.3, turns=3, generators=2),
}


def run() -> Result:
    """The worst ratio of the goals: error of each prediction, their median, regret and seconds of the search."""
    errors = prediction_errors()
    with tempfile.TemporaryDirectory() as folder:
        outcomes = {name: compare_search(workload, Path(folder)) for name, workload in WORKLOADS.items()}
    for name, outcome in outcomes.items():
        typer.echo(f"{name}: {outcome}")
    sizes = [abs(error) for error in errors.values()]
    ratios = {
        "error": max(sizes) / ERROR,
        "median": statistics.median(sizes) / MEDIAN,
        "regret": max(outcome.regret for outcome in outcomes.values()) / REGRET,
        "seconds": max(outcome.seconds for outcome in outcomes.values()) / SECONDS,
    }
    return Result(
        name="plan",
        unit="of the bounds",
        higher_is_better=False,
        ours=max(ratios.values()),
        bound=1.0,
        details={
            "ratios": {name: round(ratio, 3) for name, ratio in ratios.items()},
            "errors": {name: round(error, 4) for name, error in errors.items()},
            "regret": {name: round(outcome.regret, 4) for name, outcome in outcomes.items()},
            "search_s": {name: round(outcome.seconds, 1) for name, outcome in outcomes.items()},
            "candidates": {name: outcome.num_candidates for name, outcome in outcomes.items()},
            "simulated": {name: outcome.num_simulated for name, outcome in outcomes.items()},
            "compared": {name: outcome.num_compared for name, outcome in outcomes.items()},
        },
    )


def prediction_errors(runs: Mapping[str, RealRun] = RUNS, steps: int = STEPS) -> dict[str, float]:
    """Relative error of each run's step time, predicted from the calibration of the run before it."""
    with tempfile.TemporaryDirectory() as folder:
        directories = {name: _train(Path(folder), name, real, steps) for name, real in runs.items()}
        observed = {name: observe_run(directory) for name, directory in directories.items()}
        errors = dict[str, float]()
        for name, source in zip(runs, [*list(runs)[1:], next(iter(runs))], strict=True):
            calibration = _with_waits(calibrate(observed[source][1]), runs[name])
            run, target = observed[name]
            predicted = predict_run(schedule_of(run, calibration, target), calibration, len(target.steps))
            measured_s, _ = measured_phases(target.steps)
            errors[name] = predicted.step_s / measured_s - 1.0
            typer.echo(f"{name}: {predicted.step_s:.2f} s predicted from {source!r}, {measured_s:.2f} s measured")
    return errors


def _with_waits(calibration: RunCalibration, real: RealRun) -> RunCalibration:
    """The calibration with the turns and latencies that the other run is configured with."""
    normal = NormalDist()
    waits = [real.wait_s * math.exp(SIGMA * normal.inv_cdf((index + 0.5) / 128)) for index in range(128)]
    return replace(calibration, turns=(real.turns,), waits_s=tuple(waits))


def _train(folder: Path, name: str, real: RealRun, steps: int) -> Path:
    """Train in a separate process; the directory of the run."""
    run = name.replace(" ", "-")
    path = folder / f"{run}.json"
    path.write_text(json.dumps(_config(folder, run, real, steps)), encoding="utf-8")
    command = [sys.executable, "-m", "roll", "train", str(path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert result.returncode == 0, result.stderr[-2000:]
    return folder / run


def _config(folder: Path, name: str, real: RealRun, steps: int) -> dict[str, Any]:
    env = {
        "kind": "benchmarks.async_cpu:Copying",
        "turns": real.turns,
        "median_s": real.wait_s,
        "sigma": SIGMA,
    }
    return {
        "name": name,
        "directory": str(folder),
        "executor": "ray",
        "threads": 1,
        "steps": steps,
        "model": {
            "shape": {"alphabet": "0123456789=", "hidden": 64, "layers": 2, "heads": 4, "kv_heads": 4, "mlp": 128}
        },
        "algorithm": {"recipe": "grpo"},
        "tasks": [{"name": "copy", "data": {"kind": "seeds", "count": 100_000}, "env": env}],
        "rollout": {
            "groups_per_step": real.groups,
            "group_size": real.siblings,
            "max_staleness": real.staleness,
            "max_seq_len": 256,
            "max_new_tokens": 48,
            "max_turns": real.turns,
        },
        "actor_train": {"devices": "cpu"},
        "actor_infer": {"devices": "cpu", "workers": real.generators, "max_num_seqs": 32},
        "validation": {"at_start": False},
        "checkpoint": {"every": 0},
        "tracking": {"tensorboard": False},
    }
