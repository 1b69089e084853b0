"""Attempts at held-out tasks of a run, in files of its directory: those of the first and of the newest validation."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roll.report.attempts import attempt_row, to_line
from roll.tracking.log import announce
from roll.types import Trajectory

if TYPE_CHECKING:
    from roll.report.attempts import Decode

HELD_OUT = "held_out"
"""Name of their directory in the run's."""
_FILE = re.compile(r"step-(\d+)\.jsonl")


def save_attempts(directory: Path, decode: Decode, step: int, results: Mapping[str, Sequence[Trajectory]]) -> None:
    """Write the attempts after `step` to `directory`; delete those of validations between the first and this one.

    A failed write is only reported: nothing else depends on these files.
    """
    try:
        _save_attempts(directory, decode, step, results)
    except OSError as error:
        announce(f"{directory}: the attempts of step {step} are not written ({error})", logging.WARNING)


def _save_attempts(directory: Path, decode: Decode, step: int, results: Mapping[str, Sequence[Trajectory]]) -> None:
    directory.mkdir(exist_ok=True)
    temporary = directory / f".step-{step}"
    with temporary.open("w", encoding="utf-8", errors="backslashreplace") as file:
        file.writelines(to_line(attempt_row(name, each, decode)) for name, all in results.items() for each in all)
    temporary.replace(directory / f"step-{step}.jsonl")  # readers see whole files only
    first = min(_files(directory))
    for other, path in _files(directory).items():
        if other not in (first, step):
            path.unlink()


def read_attempts(directory: Path, last_step: int) -> dict[int, list[dict[str, Any]]]:
    """Rows by step, in order; without validations of steps after `last_step`, which a resume takes back."""
    files = _files(directory) if directory.is_dir() else {}
    return {step: _rows(path) for step, path in sorted(files.items()) if step <= last_step}


def _files(directory: Path) -> dict[int, Path]:
    matches = {path: _FILE.fullmatch(path.name) for path in directory.iterdir()}
    return {int(match[1]): path for path, match in matches.items() if match is not None}


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
