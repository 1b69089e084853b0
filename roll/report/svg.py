"""A trace as an SVG picture: workers above, attempts below, time to the right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

_WIDTH, _LEFT, _RIGHT, _TOP = 1200, 110, 30, 34
_ENTRY, _LINE = 120, 18
"""Width of an entry of the legend, and height of a line of entries."""
_PER_LINE = (_WIDTH - _LEFT) // _ENTRY
_WORKER, _SAMPLE = 22, 6
"""Height of a worker's track and of a sample's track, in pixels."""
_MOST_SAMPLES = 64
_COLOURS = {
    "queued": "#bcd0e5",
    "generat": "#4c78a8",
    "environment": "#f2cf5b",
    "scor": "#b279a2",
    "ready": "#bab0ac",
    "trained": "#72b7b2",
    "update": "#e45756",
    "publish": "#f58518",
    "checkpoint": "#9d755d",
    "the controller": "#8c8c8c",
    "idle": "#ececec",
}
"""Colour by prefix of the phase's name."""


@dataclass(frozen=True, slots=True)
class _Bar:
    """One interval of one track, in microseconds."""

    name: str
    start: int
    end: int


def draw(events: Sequence[dict[str, Any]]) -> str:
    """The picture of a trace's events; of many attempts an even selection is drawn."""
    workers, samples = _workers(events), _samples(events)
    shown = samples[:: max(1, -(-len(samples) // _MOST_SAMPLES))]
    bars = [bar for _, track in workers for bar in track] + [bar for track in shown for bar in track]
    begin, end = min((bar.start for bar in bars), default=0), max((bar.end for bar in bars), default=1)
    entries = [prefix for prefix in _COLOURS if any(bar.name.startswith(prefix) for bar in bars)]
    top = _TOP + _LINE * (max(0, len(entries) - 1) // _PER_LINE)
    height = top + len(workers) * (_WORKER + 4) + 14 + len(shown) * _SAMPLE + 30
    scale = (_WIDTH - _LEFT - _RIGHT) / max(1, end - begin)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        'font-family="sans-serif">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        *_legend(entries),
    ]
    y = top
    for name, track in workers:
        lines.append(f'<text x="4" y="{y + 15}" font-size="12">{escape(name)}</text>')
        lines += [_rectangle(bar, y, _WORKER, begin, scale) for bar in track]
        y += _WORKER + 4
    y += 14
    lines.append(f'<text x="4" y="{y + 10}" font-size="12">{len(shown)} attempts</text>')
    for track in shown:
        lines += [_rectangle(bar, y, _SAMPLE - 1, begin, scale) for bar in track]
        y += _SAMPLE
    lines += _axis(begin, end, y + 14, scale)
    return "\n".join([*lines, "</svg>", ""])


def _workers(events: Sequence[dict[str, Any]]) -> list[tuple[str, list[_Bar]]]:
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    tracks: dict[int, list[_Bar]] = {track: [] for track in names}
    for event in events:
        if event["ph"] == "X":
            tracks[event["tid"]].append(_Bar(event["name"], event["ts"], event["ts"] + event["dur"]))
    return [(names[track], bars) for track, bars in tracks.items()]


def _samples(events: Sequence[dict[str, Any]]) -> list[list[_Bar]]:
    """The phases of each attempt, ordered by the attempt's start."""
    tracks: dict[int, list[_Bar]] = {}
    starts: dict[tuple[int, str], int] = {}
    for event in events:
        if event["ph"] == "b" and "args" not in event:
            starts[event["id"], event["name"]] = event["ts"]
        if event["ph"] == "e" and (event["id"], event["name"]) in starts:
            bar = _Bar(event["name"], starts[event["id"], event["name"]], event["ts"])
            tracks.setdefault(event["id"], []).append(bar)
    return sorted(tracks.values(), key=lambda bars: bars[0].start)


def _rectangle(bar: _Bar, y: int, height: int, begin: int, scale: float) -> str:
    x, width = _LEFT + (bar.start - begin) * scale, max(0.3, (bar.end - bar.start) * scale)
    title = f"<title>{escape(bar.name)}, {(bar.end - bar.start) / 1e6:.3f} s</title>"
    frame = f'x="{x:.1f}" y="{y}" width="{width:.1f}" height="{height}"'
    colour = next((colour for prefix, colour in _COLOURS.items() if bar.name.startswith(prefix)), "#555555")
    return f'<rect {frame} fill="{colour}">{title}</rect>'


def _legend(entries: Sequence[str]) -> Iterator[str]:
    names = {"generat": "generating", "scor": "scoring", "trained": "training on it", "idle": "waiting"}
    for index, prefix in enumerate(entries):
        x, y = _LEFT + _ENTRY * (index % _PER_LINE), 8 + _LINE * (index // _PER_LINE)
        yield f'<rect x="{x}" y="{y}" width="12" height="12" fill="{_COLOURS[prefix]}"/>'
        yield f'<text x="{x + 16}" y="{y + 10}" font-size="12">{names.get(prefix, prefix)}</text>'


def _axis(begin: int, end: int, y: int, scale: float) -> Iterator[str]:
    """About eight round marks, in seconds from the left edge."""
    seconds = (end - begin) / 1e6
    step = next((size for size in (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 60, 600, 3600) if seconds / size <= 10), 36_000)
    for mark in range(int(seconds / step) + 1):
        x = _LEFT + mark * step * 1e6 * scale
        yield f'<text x="{x:.0f}" y="{y}" font-size="11" text-anchor="middle">{mark * step:g} s</text>'
