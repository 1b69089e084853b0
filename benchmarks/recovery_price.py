"""Seconds per step of a run on Ray in which nothing fails, with and without the recovery from lost workers."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import typer

from benchmarks.chaos import RUN
from benchmarks.recovery import RAY, read_events, write_run
from benchmarks.result import Result
from roll.journal.events import WeightsPublished

TURNS, STEPS = 4, 60
"""Runs of each kind, and steps of each run."""
GOAL = 1.02
_SKIPPED = 5
"""First steps, which include what is done once."""
_OFF = "ray.max_replacements=0"
_TIMEOUT_S = 1200.0


def run() -> Result:
    """The median over runs of their median seconds per step, with recovery and without, in turns."""
    kinds: dict[str, Sequence[str]] = {"with": RAY, "without": (*RAY, _OFF)}
    medians: dict[str, list[float]] = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(TURNS):
            for kind in list(kinds)[:: 1 if turn % 2 else -1]:  # each is the first in half of the turns
                steps = seconds_per_step(Path(folder) / f"{kind}-{turn}", kinds[kind], STEPS)
                medians[kind].append(round(statistics.median(steps), 4))
                typer.echo(f"{kind} recovery: {medians[kind][-1]:.4f} s per step")
    ours, peer = (statistics.median(medians[kind]) for kind in kinds)
    return Result(
        name="recovery_price",
        unit="s/step",
        higher_is_better=False,
        ours=ours,
        peer=peer,
        details={"goal": GOAL, "medians_s": medians},
    )


def seconds_per_step(folder: Path, settings: Sequence[str], steps: int) -> list[float]:
    """Seconds between the published versions of one run, without its first steps."""
    write_run(folder)
    command = [sys.executable, "-m", "roll", "train", "run.yaml", *settings, f"steps={steps}"]
    with (folder / "output").open("w", encoding="utf-8") as output:
        subprocess.run(command, cwd=folder, stdout=output, stderr=output, check=True, timeout=_TIMEOUT_S)
    published = read_events(folder / "runs" / RUN["name"], WeightsPublished)
    return [after.time - before.time for before, after in pairwise(published)][_SKIPPED:]
