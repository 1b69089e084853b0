"""A learning curve as SVG, without a plotting library; it scales well in a README."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from roll.errors import ConfigError
from roll.tracking.sinks import read_lines

_WIDTH, _HEIGHT = 860, 440
_LEFT, _RIGHT, _TOP, _BOTTOM = 72, 28, 84, 62
_COLOURS = ("#2563eb", "#ea580c", "#059669", "#9333ea", "#dc2626", "#0891b2")
_NEIGHBOURS = 16
"""A dense series is smoothed over 1/16 of its points on either side."""
_MAX_NAME = 50
"""Characters of a run's name in the title, which has one line."""

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One curve of the picture."""

    name: str
    points: Points
    sparse: bool = False
    """Sparse series are drawn with markers; dense ones as a thin line with a smoothed line on top."""


@dataclass(frozen=True, slots=True)
class _Scale:
    """Maps values of one axis to coordinates of the picture."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def curve_svg(series: Sequence[Series], *, title: str, x_label: str, y_label: str) -> str:
    """The series as one picture on a white background, readable on light and dark pages."""
    points = [point for one in series for point in one.points]
    x_ticks = ticks(*_range([x for x, _ in points]), whole=True)
    y_ticks = ticks(*_range([0.0, *(y for _, y in points)]))  # an axis without 0 exaggerates
    x = _Scale(x_ticks[0], x_ticks[-1], _LEFT, _WIDTH - _RIGHT)
    places = _legend_places(series)
    top = _TOP + places[-1][1] if places else _TOP
    y = _Scale(y_ticks[0], y_ticks[-1], _HEIGHT - _BOTTOM, top)
    lines = [line for index, one in enumerate(series) for line in _draw(one, _colour(index), x, y)]
    body = [*_frame(title, x_label, y_label), *_grid(x, y, x_ticks, y_ticks), *lines, *_legend(series, places)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{escape(title)}" font-family="system-ui, Segoe UI, Helvetica, Arial, sans-serif">\n'
        + "\n".join(body)
        + "\n</svg>\n"
    )


def curve_from(path: Path) -> str:
    """The learning curve of a run, with its name: training reward and held-out accuracy, from `metrics.jsonl`."""
    lines = read_lines(path)
    accuracy = _column(lines, "validation/accuracy")
    held_out = ("held-out accuracy", accuracy) if accuracy else ("held-out reward", _column(lines, "validation/reward"))
    both = [
        Series(name="training reward", points=_column(lines, "reward/mean")),
        Series(name=held_out[0], points=held_out[1], sparse=True),
    ]
    series = [one for one in both if one.points]
    if not series:
        raise ConfigError(f"{path}: no step with a reward or a validation yet; let the run complete one")
    name = path.resolve().parent.name[:_MAX_NAME]
    return curve_svg(series, title=f"{name}: learning curve", x_label="step", y_label="reward, accuracy")


def ticks(low: float, high: float, *, whole: bool = False, about: int = 6) -> list[float]:
    """Round numbers at distances of 1, 2 or 5 times a power of ten, from at or below `low` to at or above `high`."""
    if high <= low:
        low, high = low - 0.5, low + 0.5
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    distance = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * (1 - 1e-9))
    distance = max(distance, 1.0) if whole else distance
    first, last = math.floor(low / distance + 1e-9), math.ceil(high / distance - 1e-9)
    return [round(index * distance, 12) for index in range(first, max(last, first + 1) + 1)]


def smooth(points: Points) -> list[tuple[float, float]]:
    """Centred moving average: as many neighbours to the left as to the right, so that the line does not lag."""
    radius = max(1, len(points) // _NEIGHBOURS)
    result: list[tuple[float, float]] = []
    for index, (x, _) in enumerate(points):
        reach = min(radius, index, len(points) - 1 - index)
        neighbours = [y for _, y in points[index - reach : index + reach + 1]]
        result.append((x, sum(neighbours) / len(neighbours)))
    return result


def _column(lines: Sequence[dict[str, Any]], name: str) -> list[tuple[float, float]]:
    return [(line["step"], line[name]) for line in lines if line.get(name) is not None]


def _range(values: Sequence[float]) -> tuple[float, float]:
    finite = [value for value in values if math.isfinite(value)]
    return (min(finite), max(finite)) if finite else (0.0, 1.0)


def _draw(one: Series, colour: str, x: _Scale, y: _Scale) -> list[str]:
    points = [(at, value) for at, value in one.points if math.isfinite(value)]
    if one.sparse:
        markers = [
            f'<circle cx="{x(at):.1f}" cy="{y(value):.1f}" r="4" fill="#fff" stroke="{colour}" stroke-width="2.2"/>'
            for at, value in points
        ]
        return [_path(points, x, y, f'stroke="{colour}" stroke-width="2.2"'), *markers]
    return [
        _path(points, x, y, f'stroke="{colour}" stroke-width="1.1" stroke-opacity="0.35"'),
        _path(smooth(points), x, y, f'stroke="{colour}" stroke-width="2.4"'),
    ]


def _path(points: Points, x: _Scale, y: _Scale, style: str) -> str:
    coordinates = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in points)
    return f'<polyline points="{coordinates}" fill="none" {style} stroke-linejoin="round" stroke-linecap="round"/>'


def _frame(title: str, x_label: str, y_label: str) -> list[str]:
    across, down = (_LEFT + _WIDTH - _RIGHT) / 2, (_TOP + _HEIGHT - _BOTTOM) / 2
    return [
        f'<rect x="0.5" y="0.5" width="{_WIDTH - 1}" height="{_HEIGHT - 1}" rx="12" fill="#ffffff" stroke="#e2e8f0"/>',
        f'<text x="{_LEFT}" y="38" font-size="19" font-weight="600" fill="#0f172a">{escape(title)}</text>',
        _label(across, _HEIGHT - 18, x_label, "middle", 13),
        f'<text transform="translate(22 {down:.1f}) rotate(-90)" font-size="13" fill="#475569" '
        f'text-anchor="middle">{escape(y_label)}</text>',
    ]


def _grid(x: _Scale, y: _Scale, x_ticks: Sequence[float], y_ticks: Sequence[float]) -> Iterator[str]:
    for value in y_ticks:
        yield _rule(x.start, y(value), x.end, y(value), "#94a3b8" if value == y_ticks[0] else "#e9eef5")
        yield _label(_LEFT - 10, y(value) + 4, f"{value:g}", "end", 12)
    for value in x_ticks:
        yield _rule(x(value), y.start, x(value), y.start + 5, "#94a3b8")
        yield _label(x(value), y.start + 21, f"{value:g}", "middle", 12)


def _legend_places(series: Sequence[Series]) -> list[tuple[float, float]]:
    """Left edge of each entry, and its distance below the first line of entries; a full line begins the next one."""
    places: list[tuple[float, float]] = []
    left, down = float(_LEFT), 0.0
    for one in series:
        width = 31 + 7.2 * len(one.name)  # 7.2 is about one letter at this size
        if left > _LEFT and left + width > _WIDTH - _RIGHT:
            left, down = float(_LEFT), down + 20
        places.append((left, down))
        left += width + 26
    return places


def _legend(series: Sequence[Series], places: Sequence[tuple[float, float]]) -> Iterator[str]:
    for index, (one, (left, down)) in enumerate(zip(series, places, strict=True)):
        colour, y = _colour(index), 60 + down
        yield f'<line x1="{left:.0f}" y1="{y:g}" x2="{left + 24:.0f}" y2="{y:g}" stroke="{colour}" stroke-width="2.4"/>'
        if one.sparse:
            yield f'<circle cx="{left + 12:.0f}" cy="{y:g}" r="4" fill="#fff" stroke="{colour}" stroke-width="2.2"/>'
        yield _label(left + 31, y + 4, one.name, "start", 13)


def _rule(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _label(x: float, y: float, text: str, anchor: str, size: int) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="#475569" text-anchor="{anchor}">{escape(text)}</text>'
    )


def _colour(index: int) -> str:
    return _COLOURS[index % len(_COLOURS)]
