"""The summary of stages that ran one after another: a table, and a curve for each stage that trained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roll.tracking.curve import Points, Series, curve_svg
from roll.tracking.directory import METRICS
from roll.tracking.sinks import read_lines

SUMMARY = "summary.md"
_CURVES = {
    "validation/accuracy": ("held-out accuracy", True),
    "sft/accuracy": ("held-out accuracy", True),
    "preference/held_out_accuracy": ("held-out preferences", True),
    "reward/mean": ("training reward", False),
    "preference/accuracy": ("training preferences", False),
    "sft/loss": ("training loss", False),
    "distillation/loss": ("training loss", False),
}
"""Metrics that show progress: their label, and whether few steps have them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedStage:
    """What the summary says of one stage."""

    name: str
    command: str
    directory: Path
    seconds: float
    samples: int | None = None
    """Attempts that a rollout kept; None for a stage that trained."""


def summary_rows(stages: Sequence[FinishedStage]) -> list[tuple[str, str, str, str]]:
    """Name, command, duration and result of each stage."""
    return [(stage.name, stage.command, f"{stage.seconds:,.0f} s", _result(stage)) for stage in stages]


def write_summary(folder: Path, name: str, stages: Sequence[FinishedStage]) -> Path:
    """Write the table with a picture per stage that trained; the path of the page."""
    rows = [" | ".join(("", *row, "")).strip() for row in summary_rows(stages)]
    lines = [f"# {name}", "", "| stage | command | time | result |", "| --- | --- | --- | --- |", *rows, ""]
    for stage in stages:
        if series := list(_series(stage)):
            picture = folder / f"{stage.name}.svg"
            title = f"{stage.name} ({stage.command})"
            picture.write_text(curve_svg(series, title=title, x_label="step", y_label=""), encoding="utf-8")
            lines += [f"![{title}]({picture.name})", ""]
    page = folder / SUMMARY
    page.write_text("\n".join(lines), encoding="utf-8")
    return page


def _lines(stage: FinishedStage) -> list[dict[str, Any]]:
    path = stage.directory / METRICS
    return read_lines(path) if path.is_file() else []


def _points(lines: Sequence[dict[str, Any]], name: str) -> Points:
    return [(float(line["step"]), float(line[name])) for line in lines if line.get(name) is not None]


def _series(stage: FinishedStage) -> Iterator[Series]:
    lines = _lines(stage)
    for name, (label, sparse) in _CURVES.items():
        if points := _points(lines, name):
            yield Series(name=label, points=points, sparse=sparse)


def _result(stage: FinishedStage) -> str:
    """The number of steps, and the first and last value of the first metric that the stage has."""
    if stage.samples is not None:
        return f"{stage.samples:,} samples"
    lines = _lines(stage)
    steps = f"{int(lines[-1]['step']):,} steps" if lines else "no steps"
    for name, (label, _) in _CURVES.items():
        if values := [value for _, value in _points(lines, name)]:
            return f"{steps}, {label} {values[0]:.3f} -> {values[-1]:.3f}"
    return steps
