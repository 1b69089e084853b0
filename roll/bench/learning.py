"""Whether the demo learns: warm start, then reinforcement, for three seeds and for a control whose rewards are noise.

The same code as `roll sft` and `roll train` on `examples/arithmetic.yaml`, in a directory that is deleted afterwards.
"""

from __future__ import annotations

import sys
import tempfile
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import typer

from roll import commands
from roll.bench.result import Result
from roll.config.load import Loaded, load
from roll.preflight import preflight
from roll.tracking.sinks import read_lines

SEEDS = (0, 1, 2)
BOUND = 0.3
_EXAMPLE = Path("examples/arithmetic.yaml")
_CONTROL = "algorithm={recipe: grpo, advantage: 'roll.bench.control:shuffled'}"


def run() -> Result:
    """The smallest gain in held-out accuracy over the seeds, against 0.3; each seed and the control in the details."""
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for seed in SEEDS:
            overrides = [f"seed={seed}", f"directory={folder}", f"name=seed-{seed}"]
            began = time.perf_counter()
            model = _warm_start(overrides)
            found[f"seed {seed}"] = _learn([*overrides, model], began)
            _say(f"seed {seed}", found)
            if seed == SEEDS[0]:
                began = time.perf_counter()
                found["control"] = _learn([*overrides, "name=control", model, _CONTROL], began)
                _say("control", found)
    return Result(
        name="learning",
        unit="held-out accuracy gained",
        higher_is_better=True,
        ours=min(found[f"seed {seed}"]["gain"] for seed in SEEDS),
        bound=BOUND,
        details=found,
    )


def _warm_start(overrides: list[str]) -> str:
    """The override that starts a run from the model that `roll sft` leaves."""
    loaded = _loaded(overrides)
    with redirect_stdout(sys.stderr):
        commands.warm_start(loaded, overwrite=False)
    return f"model={{path: '{loaded.run.directory}/{loaded.run.name}-sft/model'}}"


def _learn(overrides: list[str], began: float) -> dict[str, Any]:
    """Held-out accuracy before and after `roll train`, and the seconds since `began`."""
    loaded = _loaded(overrides)
    with redirect_stdout(sys.stderr):
        commands.train(loaded, overwrite=False)
    lines = read_lines(Path(loaded.run.directory, loaded.run.name, "metrics.jsonl"))
    accuracies = [line["validation/accuracy"] for line in lines if "validation/accuracy" in line]
    before, after = accuracies[0], accuracies[-1]
    spent_s = round(time.perf_counter() - began, 1)
    return {"before": round(before, 4), "after": round(after, 4), "gain": round(after - before, 4), "spent_s": spent_s}


def _loaded(overrides: list[str]) -> Loaded:
    loaded = load(_EXAMPLE, overrides)
    preflight(loaded)
    return loaded


def _say(label: str, found: dict[str, dict[str, Any]]) -> None:
    numbers = found[label]
    typer.echo(f"{label}: {numbers['before']:.3f} -> {numbers['after']:.3f} in {numbers['spent_s']:.0f} s")
