"""Rewrites the numbers between two markers on the page of benchmarks; the prose around them stays."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from benchmarks.catalogue import CATALOGUE
from benchmarks.result import Result
from roll.errors import ConfigError

BEGIN = "<!-- numbers: written by `roll bench all` -->"
END = "<!-- end of numbers -->"
_HEAD = ("name", "ours", "peer or bound", "ratio", "unit", "goal", "command")


def rewrite(path: Path, results: Sequence[Result]) -> None:
    """Replace the numbers on the page by `results`."""
    text = read(path)
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    block = "\n".join([BEGIN, "", *_table(results), "", f"Measured with {_setting()}.", "", END])
    path.write_text(before + block + after, encoding="utf-8")


def read(path: Path) -> str:
    """The text of the page; an error if it has no markers for the numbers."""
    if not path.is_file():
        raise ConfigError(f"{path}: no such page; run `roll bench all` from the root of a clone")
    text = path.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ConfigError(f"{path}: no markers for the numbers; restore the lines {BEGIN!r} and {END!r}, once each")
    return text


def _table(results: Sequence[Result]) -> list[str]:
    rows = [_HEAD, ("---",) * len(_HEAD), *(_row(result) for result in results)]
    return [f"| {' | '.join(row)} |" for row in rows]


def _row(result: Result) -> tuple[str, ...]:
    numbers = (_number(result.ours), _number(result.other), _number(result.ratio))
    if result.skipped:
        numbers = (f"skipped: {result.skipped.replace('|', '/')}", "", "")
    return (result.name, *numbers, result.unit, CATALOGUE[result.name].goal, f"`roll bench {result.name}`")


def _number(value: float | None) -> str:
    """Three significant digits, no exponent."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _setting() -> str:
    versions = [f"{package} {metadata.version(package)}" for package in ("torch", "transformers")]
    return ", ".join([f"{os.cpu_count()} {platform.machine()} cores", f"Python {platform.python_version()}", *versions])
