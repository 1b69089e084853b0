"""Whether an example learns: warm start and reinforcement for each seed, and once more with rewards that are noise.

The same code as `roll sft` and `roll train` on the example's file, in a directory that is deleted afterwards.
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
from roll.config.load import Loaded, load
from roll.preflight import preflight
from roll.tracking.sinks import read_lines


def gains(example: Path, seeds: Sequence[int], *, control: str) -> dict[str, dict[str, Any]]:
    """Held-out accuracy before and after, for each seed and for the control, which begins as the first seed does.

    `control` is the override that takes the meaning out of the rewards.
    """
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for seed in seeds:
            overrides = [f"seed={seed}", f"directory={folder}", f"name=seed-{seed}"]
            began = time.perf_counter()
            model = _warm_start(example, overrides)
            found[f"seed {seed}"] = _learn(example, [*overrides, model], began)
            _say(f"seed {seed}", found)
            if seed == seeds[0]:
                began = time.perf_counter()
                found["control"] = _learn(example, [*overrides, "name=control", model, control], began)
                _say("control", found)
    return found


def smallest(found: dict[str, dict[str, Any]]) -> float:
    """The least that any seed gained; the control is none."""
    return min(numbers["gain"] for label, numbers in found.items() if label != "control")


def _warm_start(example: Path, overrides: list[str]) -> str:
    """The override that starts a run from the model that `roll sft` leaves."""
    loaded = _loaded(example, overrides)
    with redirect_stdout(sys.stderr):
        commands.warm_start(loaded, overwrite=False)
    path = f"{loaded.run.directory}/{loaded.run.name}-sft/model"
    return f"model={{path: '{path}', template: {loaded.run.model.template}}}"


def _learn(example: Path, overrides: list[str], began: float) -> dict[str, Any]:
    """Held-out accuracy before and after `roll train`, and the seconds since `began`."""
    loaded = _loaded(example, overrides)
    with redirect_stdout(sys.stderr):
        commands.train(loaded, overwrite=False)
    lines = read_lines(Path(loaded.run.directory, loaded.run.name, "metrics.jsonl"))
    accuracies = [line["validation/accuracy"] for line in lines if "validation/accuracy" in line]
    before, after = accuracies[0], accuracies[-1]
    spent_s = round(time.perf_counter() - began, 1)
    return {"before": round(before, 4), "after": round(after, 4), "gain": round(after - before, 4), "spent_s": spent_s}


def _loaded(example: Path, overrides: list[str]) -> Loaded:
    loaded = load(example, overrides)
    preflight(loaded)
    return loaded


def _say(label: str, found: dict[str, dict[str, Any]]) -> None:
    numbers = found[label]
    typer.echo(f"{label}: {numbers['before']:.3f} -> {numbers['after']:.3f} in {numbers['spent_s']:.0f} s")
