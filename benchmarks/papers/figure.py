"""The result of one experiment: a picture, a table, and the claims of the paper that it was made for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from roll.tracking.curve import Series, curve_svg


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A statement of the paper, and whether our numbers show the same."""

    text: str
    shown: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Curves and table of one experiment."""

    title: str
    x_label: str
    y_label: str
    series: list[Series]
    columns: list[str]
    rows: list[list[str]]
    claims: list[Claim]


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """Description of an experiment and the function that runs it."""

    run: str
    """`package.module:attribute` of a function that returns a `Figure`; it reports its progress line by line."""
    about: str
    """One line for the list of `roll bench paper`."""


Report = Callable[[str], None]
"""Receives a line for each simulated or real run."""


def write(folder: Path, name: str, figure: Figure) -> None:
    """Write the picture and the numbers to `name.svg` and `name.json` in the folder."""
    picture = curve_svg(figure.series, title=figure.title, x_label=figure.x_label, y_label=figure.y_label)
    (folder / f"{name}.svg").write_text(picture, encoding="utf-8")
    numbers = msgspec.json.format(msgspec.json.encode(figure), indent=1)
    (folder / f"{name}.json").write_bytes(numbers + b"\n")


def read(folder: Path, name: str) -> Figure:
    """The figure that `write` has stored in the folder."""
    return msgspec.json.decode((folder / f"{name}.json").read_bytes(), type=Figure)


def table(figure: Figure) -> list[str]:
    """The rows as a table in Markdown."""
    rows = [figure.columns, ["---"] * len(figure.columns), *figure.rows]
    return [f"| {' | '.join(row)} |" for row in rows]


def curve(name: str, points: Sequence[tuple[float, float]]) -> Series:
    """A curve through a few measured points."""
    return Series(name=name, points=list(points), sparse=True)
