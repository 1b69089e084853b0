"""Several runs side by side: curves over steps, tokens and time, final numbers, and the keys that differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from roll.errors import ConfigError
from roll.report.compare import config_differences, final_numbers, flat_config
from roll.watch.metrics import MetricColumns, SeriesQuery
from roll.watch.standard_errors import standard_error
from roll.watch.view import RunView

MOST_RUNS = 8
_CURVES: Mapping[str, Sequence[str]] = {
    "reward": ("reward/mean",),
    "held-out": ("validation/accuracy", "validation/reward", "sft/accuracy"),
    "tokens/s": ("speed/tokens_per_s",),
    "length": ("length/mean",),
    "staleness": ("staleness/mean",),
    "entropy": ("loss/entropy",),
    "step time": ("time/step",),
    "loss": ("loss/policy", "sft/loss"),
}
"""Metrics of each curve: the first that a run has."""


def compare(views: Sequence[RunView], points: int) -> dict[str, Any]:
    """The answer of `/compare`."""
    runs = [_describe(view, points) for view in views]
    try:
        differences = config_differences([flat_config(view.directory) for view in views])
        error = None
    except (ConfigError, OSError) as cause:
        differences, error = {}, str(cause).splitlines()[0]
    return {
        "runs": runs,
        "names": [name for name in _CURVES if any(name in run["series"] for run in runs)],
        "config": [{"key": key, "values": values} for key, values in differences.items()],
        "config_error": error,
    }


def _describe(view: RunView, points: int) -> dict[str, Any]:
    metrics = view.metrics
    last = metrics.last()
    chosen = {name: next((each for each in names if each in last), None) for name, names in _CURVES.items()}
    names = {name: metric for name, metric in chosen.items() if metric is not None}
    answer = metrics.series(SeriesQuery(names=tuple(names.values()), points=points), standard_error)
    start = _start(metrics)
    return {
        "run": view.name,
        "state": view.state()["state"],
        "error": view.error,
        "series": {name: answer["series"][metric] for name, metric in names.items()},
        **{name: answer[name] for name in ("step", "tokens", "bucket")},
        "wall_s": [None if time is None else time - start for time in answer["time"]],
        "numbers": _numbers(metrics, names),
    }


def _start(metrics: MetricColumns) -> float:
    _, times = metrics.rows()
    return float(times[0]) if len(times) else 0.0


def _numbers(metrics: MetricColumns, names: Mapping[str, str]) -> dict[str, float]:
    steps, times = metrics.rows()
    if not len(steps):
        return {}
    lines = [{"step": int(steps[index]), "time": float(times[index])} for index in (0, -1)]
    curves: dict[str, list[tuple[int, float]]] = {}
    for name in ("reward", "held-out"):
        if name in names:
            values = metrics.column(names[name])
            curves[name] = [(int(steps[index]), float(values[index])) for index in np.flatnonzero(np.isfinite(values))]
    return final_numbers(lines, curves)
