"""The page `docs/faults.md`, from the files that the benchmarks `chaos` and `chaos_soak` have written."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import fill

from benchmarks import chaos_soak
from benchmarks.chaos import FILE, MODES, SETS, FaultSet, Observation, ObservedRun, read
from roll.commands.chaos.faults import FAULTS
from roll.commands.chaos.workers import IMPOSSIBLE

HEAD = """\
# Faults

Written by `make docs` from the files `chaos.json` and `chaos_soak.json` in `docs/results`, which `roll bench chaos` and
`roll bench chaos_soak` write. Every process is hit in a real run of a small model, by `roll chaos`, in the synchronous
mode and with `max_staleness: 2`. Each run is supervised and nobody acts on it. Afterwards `roll verify` checks it, and
processes and shared memory that it has left are counted.

| fault | what is done to the process |
|---|---|
| KILL | SIGKILL |
| STOP | SIGSTOP: it keeps its memory and its connections |
| exception | its code raises an unexpected exception; an agent gets SIGINT, which Python raises as one |
| slow | it is stopped for 90 of every 100 ms, for 5 s, and then runs again |

A transfer is hit at the moment in which its sender, or one of its receivers, begins it. Seconds are medians. The first
number is the time until a new process of the worker runs. The second is the time until the journal has the recovery.
After a slow process it is the time until the next version is published.
"""
RECOVERIES = {
    "GeneratorReplaced": (
        "the router",
        "its requests go to others or wait; a new process gets the served weights and attests them",
        "tokens since the last report, which are sampled again",
    ),
    "WorkerReplaced": (
        "the pending call",
        "a new process loads the last save and repeats {repeated} updates",
        "nothing",
    ),
    "WorkerReplaced of a pool": ("its pool", "a new process starts", "scores and attempts in it, which are retried"),
    "ControllerRestarted": (
        "the supervisor",
        "the next controller continues from the newest checkpoint",
        "{repeated} steps, which are trained again",
    ),
    "AttemptRetried": ("the scheduler", "the attempt fails with the reason and is retried", "one attempt"),
    "WeightsPublished": ("nobody", "the run waits for it", "time"),
    "": ("nobody", "the run did not recover", ""),
}
"""Who notices, what happens and what is lost, by the event that records the recovery."""
TEST = "tests/benchmarks/test_chaos_matrix.py"


def pages(folder: Path) -> dict[str, str]:
    """The page by its name relative to `docs`."""
    runs, soaks = (read(file) if (file := folder / name).exists() else {} for name in (FILE, chaos_soak.FILE))
    lines = [HEAD, *_summary(runs)]
    for name, faults in SETS.items():
        lines += ["", f"## {name}", "", *_settings(name, faults), "", *_table(name, faults, runs)]
    lines += ["", "## Random faults", "", *_soak(soaks)]
    return {"faults.md": "\n".join(lines) + "\n"}


def _summary(runs: dict[str, ObservedRun]) -> Iterator[str]:
    cells = [(mode, faults, cell) for mode in MODES for faults in SETS.values() for cell in faults.cells]
    observed = {(each.mode, each.kind, each.fault) for run in runs.values() for each in run.faults}
    num_tried = sum((mode, faults.kinds[kind], fault) in observed for mode, faults, (kind, fault) in cells)
    num_faults = sum(len(run.faults) for run in runs.values())
    yield f"Recorded so far: {num_tried} of {len(cells)} cells, {num_faults} faults in {len(runs)} runs."
    if violations := [f"- {name}: {each}" for name, run in runs.items() for each in run.violations]:
        yield from ["", "Violations:", "", *violations]
    elif runs:
        equal = [f"`{name}`" for name, run in runs.items() if run.compared]
        yield ""
        yield "No violation, no orphan process and no leaked shared memory."
        if equal:
            yield f"The weights are bit-equal to those of an unbroken run: {', '.join(equal)}."


def _settings(name: str, faults: FaultSet) -> Iterator[str]:
    yield fill(f"Settings: {', '.join(f'`{each}`' for each in faults.overrides)}.", 120, break_on_hyphens=False)
    if faults.package:
        yield f"It needs the package {faults.package}, and is left out without it."
    yield f"Tested by `{TEST}`, cases `sync-{name}` and `async-{name}` (`make test-chaos`)."


def _table(name: str, faults: FaultSet, runs: dict[str, ObservedRun]) -> Iterator[str]:
    yield "| what fails | fault | who notices | s, sync | s, async | what happens | what is lost | faults |"
    yield "|---|---|---|---|---|---|---|---|"
    for kind, label in faults.kinds.items():
        for fault in FAULTS:
            if reason := IMPOSSIBLE.get((kind, fault)):
                yield f"| {label} | {fault} | | | | impossible: {reason} | | |"
                continue
            observed = [
                each
                for mode in MODES
                for each in (runs[f"{mode} {name}"].faults if f"{mode} {name}" in runs else ())
                if (each.kind, each.fault) == (label, fault)
            ]
            if not observed:
                yield f"| {label} | {fault} | | | | not run yet | | 0 |"
            for recovery in dict.fromkeys(each.recovery for each in observed):
                yield _row(label, fault, recovery, [each for each in observed if each.recovery == recovery])


def _row(label: str, fault: str, recovery: str, observed: Sequence[Observation]) -> str:
    repeated = max(each.repeated for each in observed)
    name = f"{recovery} of a pool" if recovery == "WorkerReplaced" and label.endswith("worker") else recovery
    notices, happens, lost = (text.format(repeated=repeated) for text in RECOVERIES[name])
    seconds = [_seconds([each for each in observed if each.mode == mode]) for mode in MODES]
    cells = (label, fault, notices, *seconds, happens, lost, str(len(observed)))
    return f"| {' | '.join(cells)} |".replace("|  |", "| |")


def _seconds(observed: Sequence[Observation]) -> str:
    """Median seconds until a new process, if there was one, and until the recovery."""
    started = [each.new_process_s for each in observed if each.new_process_s is not None]
    recovered = [each.recovered_s for each in observed if each.recovered_s is not None]
    return ", ".join(f"{statistics.median(each):.1f}" for each in (started, recovered) if each)


def _soak(soaks: dict[str, ObservedRun]) -> Iterator[str]:
    if not soaks:
        yield "`roll bench chaos_soak` injects 200 random faults in one run. It has not been recorded yet."
    for run in soaks.values():
        yield (
            f"`roll bench chaos_soak`: {len(run.faults)} faults in {run.steps} steps and {run.seconds / 60:.0f} "
            f"minutes, {len(run.violations)} violations."
        )
