"""Gain in accuracy of an example: warm start and RL for each seed, and a control run with permuted rewards.

Runs the code of `roll sft` and `roll train` on the example's file, in a directory that is deleted afterwards.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import typer

from roll.commands import train as commands
from roll.commands.sft import sft
from roll.config.load import LoadedRun, load
from roll.preflight import preflight
from roll.tracking.sinks import read_lines


def gains(example: Path, seeds: Sequence[int], *, control: str) -> dict[str, dict[str, Any]]:
    """Held-out accuracy before and after, for each seed and for the control, which starts from the first seed's model.

    `control` is the override that selects advantages of permuted rewards.
    """
    results: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for seed in seeds:
            overrides = [f"seed={seed}", f"directory={folder}", f"name=seed-{seed}"]
            began = time.perf_counter()
            model = warm_start(example, overrides)
            results[f"seed {seed}"] = _learn(example, [*overrides, model], began)
            _print_result(f"seed {seed}", results)
            if seed == seeds[0]:
                began = time.perf_counter()
                results["control"] = _learn(example, [*overrides, "name=control", model, control], began)
                _print_result("control", results)
    return results


def smallest(results: dict[str, dict[str, Any]]) -> float:
    """The smallest gain of any seed, without the control."""
    return min(numbers["gain"] for label, numbers in results.items() if label != "control")


def warm_start(example: Path, overrides: list[str]) -> str:
    """Run `roll sft`; returns the override that starts a run from its model."""
    loaded = load_example(example, overrides)
    with redirect_stdout(sys.stderr):
        sft(loaded, overwrite=False)
    path = f"{loaded.run.directory}/{loaded.run.name}-sft/model"
    return f"model={{path: '{path}', template: {loaded.run.model.template}}}"


def _learn(example: Path, overrides: list[str], began: float) -> dict[str, Any]:
    """Run `roll train`; returns held-out accuracy before and after, and the seconds since `began`."""
    loaded = load_example(example, overrides)
    with redirect_stdout(sys.stderr):
        commands.train(loaded, overwrite=False)
    lines = read_lines(Path(loaded.run.directory, loaded.run.name, "metrics.jsonl"))
    accuracies = [line["validation/accuracy"] for line in lines if "validation/accuracy" in line]
    before, after = accuracies[0], accuracies[-1]
    spent_s = round(time.perf_counter() - began, 1)
    return {"before": round(before, 4), "after": round(after, 4), "gain": round(after - before, 4), "spent_s": spent_s}


def load_example(example: Path, overrides: list[str]) -> LoadedRun:
    """The checked run of an example."""
    loaded = load(example, overrides)
    preflight(loaded)
    return loaded


def _print_result(label: str, results: dict[str, dict[str, Any]]) -> None:
    numbers = results[label]
    typer.echo(f"{label}: {numbers['before']:.3f} -> {numbers['after']:.3f} in {numbers['spent_s']:.0f} s")
