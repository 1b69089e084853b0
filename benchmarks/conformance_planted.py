"""Catch rate of the conformance kit: planted bugs of `tests/conformance` that its checks report by name."""

from __future__ import annotations

import typer

from benchmarks.result import Result
from tests.conformance.bugs import all_bugs, missing


def run() -> Result:
    """Number of planted bugs that the kit reports, against the number of planted bugs."""
    missed_by_name: dict[str, list[str]] = {}
    for name, faults, texts in all_bugs():
        missed_by_name[name] = missing(faults, texts)
        typer.echo(f"{name}: {'missed' if missed_by_name[name] else 'caught'}")
    return Result(
        name="conformance_planted",
        unit="planted bugs caught",
        higher_is_better=True,
        ours=float(sum(not texts for texts in missed_by_name.values())),
        bound=float(len(missed_by_name)),
        details={"missed": [name for name, texts in missed_by_name.items() if texts]},
    )
