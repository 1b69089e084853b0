"""A comparison of runs as text for the terminal, and as an HTML page with the curves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from statistics import fmean
from textwrap import indent
from typing import Any

from roll.report.compare import Comparison, Points, ResponseChange, RunSummary
from roll.report.html import block, page, plain, table
from roll.report.samples import shorten
from roll.tracking.curve import Series, curve_svg

_ROWS = 10
"""Rows of the table of curves."""
_MAX_VALUE = 60
"""Characters of a config value in a table."""

_FORMATS = {"steps": ".0f", "minutes": ".1f"}
"""Formats of numbers by name; others have four digits."""

Rows = list[list[str]]


def format_comparison(comparison: Comparison) -> str:
    """The tables and responses as text."""
    parts = [f"{title}\n{_align(rows)}" for title, rows in _tables(comparison)]
    for task in comparison.tasks:
        parts.append("\n".join([_task_title(task), *(indent(text, "  ") for text in _task_lines(task))]))
    return "\n\n".join(parts)


def comparison_page(comparison: Comparison) -> str:
    """The same as one self-contained page, with one picture per curve."""
    body = [_picture(comparison.runs, name) for name in _curve_names(comparison.runs)]
    body += [
        f"<section><h2>{escape(title)}</h2>{table(rows[0], rows[1:])}</section>" for title, rows in _tables(comparison)
    ]
    body += [_task_section(task) for task in comparison.tasks]
    return page("Comparison of " + " and ".join(run.run for run in comparison.runs), body)


def _tables(comparison: Comparison) -> Iterator[tuple[str, Rows]]:
    yield "curves (reward: mean over the steps since the row above)", _curve_rows(comparison.runs)
    yield "final numbers", _number_rows(comparison.runs)
    if comparison.config:
        header = ["key", *(run.run for run in comparison.runs)]
        rows = [[key, *(_value(value) for value in values)] for key, values in comparison.config.items()]
        yield "config keys that differ", [header, *rows]


def _curve_names(runs: Sequence[RunSummary]) -> list[str]:
    return list(dict.fromkeys(name for run in runs for name in run.curves))


def _curve_rows(runs: Sequence[RunSummary]) -> Rows:
    names, last = _curve_names(runs), max(run.last_step for run in runs)
    ends = sorted({round(last * index / _ROWS) for index in range(_ROWS + 1)})
    rows = [["step", *(f"{run.run} {name}" for run in runs for name in names)]]
    for start, end in zip([-1, *ends], ends, strict=False):
        cells = [
            _between(run.curves.get(name, []), start, end, mean=name == "reward") for run in runs for name in names
        ]
        rows.append([str(end), *cells])
    return rows


def _between(points: Points, start: int, end: int, *, mean: bool) -> str:
    values = [value for step, value in points if start < step <= end]
    return "-" if not values else f"{fmean(values) if mean else values[-1]:.3f}"


def _number_rows(runs: Sequence[RunSummary]) -> Rows:
    """One row per number; a difference to the first run for each other run."""
    differences = [f"difference of {run.run}" for run in runs[1:]]
    rows = [["number", *(run.run for run in runs), *differences]]
    for name in dict.fromkeys(name for run in runs for name in run.numbers):
        values = [run.numbers.get(name) for run in runs]
        form = _FORMATS.get(name, ".4g")
        cells = ["-" if value is None else f"{value:{form}}" for value in values]
        first = values[0]
        for value in values[1:]:
            cells.append("-" if value is None or first is None else f"{value - first:+{form}}")
        rows.append([name, *cells])
    return rows


def _task_title(task: Sequence[ResponseChange]) -> str:
    row = task[0].before
    return f"=== {row['source']} | task {row['id']}"


def _task_lines(task: Sequence[ResponseChange]) -> Iterator[str]:
    row = task[0].before
    yield f"prompt: {shorten(row['prompt'])}"
    if row["reference"] is not None:
        yield f"reference: {shorten(plain(row['reference']))}"
    for change in task:
        for title, text in _sides(change):
            yield f"--- {title}\n{shorten(text)}"


def _task_section(task: Sequence[ResponseChange]) -> str:
    row = task[0].before
    lines = [f"<section><h2>{escape(_task_title(task).removeprefix('=== '))}</h2>"]
    lines += [block("prompt", row["prompt"]), block("reference", row["reference"])]
    for change in task:
        sides = "".join(f"<div>{block(title, text or '(empty)')}</div>" for title, text in _sides(change))
        lines.append(f'<div class="sides">{sides}</div>')
    return "\n".join([*lines, "</section>"])


def _sides(change: ResponseChange) -> Iterator[tuple[str, str]]:
    for step, row in ((change.first_step, change.before), (change.last_step, change.after)):
        reward = f"reward {row['reward']:g}" if row["reward"] is not None else row["status"]
        yield f"{change.run}, step {step}: {reward}", row["response"]


def _picture(runs: Sequence[RunSummary], name: str) -> str:
    series = [
        Series(name=run.run, points=run.curves[name], sparse=name != "reward") for run in runs if name in run.curves
    ]
    return curve_svg(series, title=name, x_label="step", y_label=name)


def _value(value: Any) -> str:
    return "-" if value is None else shorten(plain(value), _MAX_VALUE)


def _align(rows: Rows) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        [cell.ljust(widths[0]) if not column else cell.rjust(widths[column]) for column, cell in enumerate(row)]
        for row in rows
    ]
    return "\n".join("  ".join(line).rstrip() for line in lines)
