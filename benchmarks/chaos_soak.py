"""One run in which processes of every kind fail at random times; a fault may come before the recovery from the last.

`ROLL_SOAK_FAULTS` is the number of faults, and `ROLL_SOAK_SETTINGS` has overrides of the run's file, as in a shell.
"""

from __future__ import annotations

import os
import shlex
import tempfile
from pathlib import Path

import typer

from benchmarks import chaos
from benchmarks.result import Result
from roll.commands.chaos.faults import FAULTS
from roll.commands.chaos.outcome import ChaosPlan, ChaosReport, format_chaos
from roll.commands.chaos.run import run_chaos

NUM_FAULTS, EVERY_S, LIMIT_S = 200, 7.0, 4 * 3600.0
FILE = "chaos_soak.json"
KINDS = tuple(kind for name in ("engines", "services", "controller") for kind in chaos.SETS[name].kinds)
SETTINGS = (
    *("rollout.max_staleness=2", "ray.max_replacements=1000"),
    *(
        each
        for name in ("engines", "services")
        for each in chaos.SETS[name].overrides
        if "max_replacements" not in each
    ),
)


def run() -> Result:
    """The number of violations."""
    num_faults = int(os.environ.get("ROLL_SOAK_FAULTS", str(NUM_FAULTS)))
    more = tuple(shlex.split(os.environ.get("ROLL_SOAK_SETTINGS", "")))
    with tempfile.TemporaryDirectory() as folder:
        report, violations = soak(Path(folder) / "soak", KINDS, (*SETTINGS, *more), num_faults)
    observed = chaos.observe("async", "soak", report, violations)
    chaos.save({"async soak": observed}, FILE)
    return Result(
        name="chaos_soak",
        unit="violations",
        higher_is_better=False,
        ours=float(len(violations)),
        bound=1.0,
        details={
            "faults": len(report.faults),
            "settings": more,
            "violations": violations[:20],
            "steps": observed.steps,
            "seconds": observed.seconds,
            "median_recovery_s": chaos.median_recovery_s(observed.faults),
        },
    )


def soak(
    folder: Path, kinds: tuple[str, ...], settings: tuple[str, ...], num_faults: int, every_s: float = EVERY_S
) -> tuple[ChaosReport, list[str]]:
    """The report of a run with random faults, and its violations."""
    chaos.write_run(folder, agents="agent" in kinds)
    plan = ChaosPlan(
        kinds=kinds, faults=FAULTS, every_s=every_s, num_faults=num_faults, limit_s=LIMIT_S, hang_timeout_s=20.0
    )
    with (folder / "output").open("w", encoding="utf-8") as output:
        report = run_chaos(Path("run.yaml"), settings, plan, output=output, folder=folder)
    violations = list(chaos.violations(report, plan))
    if violations:
        typer.echo(format_chaos(report), err=True)
    return report, violations
