"""Steps per hour of a run whose processes are killed about every minute, against the same run without kills."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import typer

from benchmarks.chaos import RUN, violations
from benchmarks.recovery import RAY, SERVICES, read_events, write_run
from benchmarks.result import Result
from roll.commands.chaos.outcome import ChaosPlan, ChaosReport
from roll.commands.chaos.run import run_chaos
from roll.journal.events import RunEnded, WeightsPublished

KINDS = ("generator", "reward", "trainer", "environment", "controller")
EVERY_S = 60.0
QUIET_S = 90.0
"""Seconds of each of the two runs without kills."""
GOAL = 0.8
_SETTINGS = (*RAY, *SERVICES, "rollout.max_staleness=2", "checkpoint.every=10")


def run() -> Result:
    """Steps per hour with one kill of each kind, one after the other; the runs without kills are before and after."""
    with tempfile.TemporaryDirectory() as folder:
        plan = ChaosPlan(kinds=KINDS, every_s=EVERY_S, num_faults=len(KINDS), in_turn=True, limit_s=1800.0)
        before, _ = steps_per_hour(Path(folder) / "before", _quiet(QUIET_S))
        ours, report = steps_per_hour(Path(folder) / "chaos", plan)
        after, _ = steps_per_hour(Path(folder) / "after", _quiet(QUIET_S))
    return Result(
        name="goodput",
        unit="steps/h",
        higher_is_better=True,
        ours=ours,
        peer=(before + after) / 2,
        details={
            "goal": GOAL,
            "quiet": [round(before), round(after)],
            "seconds": round(report.seconds),
            "recovery_s": {fault.kind: round(fault.recovered_s or 0.0, 1) for fault in report.faults},
        },
    )


def _quiet(seconds: float) -> ChaosPlan:
    """A plan that ends a run after this time, counted from its start, with no kill before."""
    return ChaosPlan(kinds=("reward",), every_s=1e9, limit_s=seconds)


def steps_per_hour(folder: Path, plan: ChaosPlan, settings: Sequence[str] = _SETTINGS) -> tuple[float, ChaosReport]:
    """Steps per hour from the first served version to the end of the run, and its report.

    Steps that are trained again after a rollback count once.
    """
    write_run(folder)
    with (folder / "output").open("w", encoding="utf-8") as output:
        report = run_chaos(Path("run.yaml"), settings, plan, output=output, folder=folder)
    ended, expected = report, plan
    if plan.num_faults is None:  # the time limit is its planned end
        ended, expected = replace(report, timed_out=False, exit_code=0), replace(plan, num_faults=0)
    faults = list(violations(ended, expected))
    assert not faults, f"{faults}; {(folder / 'output').read_text(encoding='utf-8')[-2000:]}"
    directory = folder / "runs" / RUN["name"]
    assert read_events(directory, RunEnded), "the run was ended before its first step"
    published, end = read_events(directory, WeightsPublished), read_events(directory, RunEnded)[-1].time
    speed = 3600 * (published[-1].event.step - published[0].event.step) / (end - published[0].time)
    typer.echo(f"{len(report.faults)} kills in {report.seconds:.0f} s: {speed:.0f} steps per hour")
    return speed, report
