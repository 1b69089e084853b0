"""The package math-verify alone, with its defaults, on a corpus: the rows that it scores otherwise than expected.

`python -m benchmarks.surface_forms.peer CORPUS` writes their numbers, which the generated page of verifiers reads.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.surface_forms.row import Row, read_rows


def disagreements(rows: Sequence[Row]) -> list[int]:
    """Numbers, from 1, of the rows whose score by math-verify is not the expected one."""
    logging.disable(logging.CRITICAL)
    package: Any = importlib.import_module("math_verify")
    numbers: list[int] = []
    for number, row in enumerate(rows, 1):
        gold = package.parse(f"${row.answer}$")
        if float(package.verify(gold, package.parse(row.response))) != row.expected:
            numbers.append(number)
    return numbers


def listing(corpus: Path) -> Path:
    """The file with the numbers for a corpus."""
    return corpus.with_suffix(".math_verify.txt")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        found = disagreements(read_rows(Path(name)))
        listing(Path(name)).write_text("".join(f"{number}\n" for number in found), encoding="utf-8")
