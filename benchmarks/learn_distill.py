"""Accuracy that a student of `roll distill` lacks to its teacher on sums, for two seeds and an untrained teacher."""

from __future__ import annotations

import sys
import tempfile
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import typer

from benchmarks.gains import load_example
from benchmarks.result import Result
from roll.commands.distill import distill
from roll.commands.sft import sft
from roll.tracking.sinks import read_lines

SEEDS = (0, 1)
BOUND = 0.05
EXAMPLE = Path("examples/distill.yaml")
TEACHER = ("model.shape.hidden=128", "model.shape.mlp=384")
UNTRAINED = ("sft.steps=1", "sft.stop_at_accuracy=null", "sft.optimizer.lr=1e-9")


def run() -> Result:
    """The largest gap in held-out accuracy over the seeds, against 0.05; the details have seeds and control."""
    results: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for seed in SEEDS:
            results[f"seed {seed}"] = _learn(folder, f"seed-{seed}", seed, ())
        results["control"] = _learn(folder, "control", SEEDS[0], UNTRAINED)
    return Result(
        name="learn_distill",
        unit="held-out accuracy below the teacher's",
        higher_is_better=False,
        ours=max(numbers["gap"] for label, numbers in results.items() if label != "control"),
        bound=BOUND,
        details=results,
    )


def _learn(folder: str, name: str, seed: int, changes: tuple[str, ...]) -> dict[str, Any]:
    """Train a teacher and distil a student; the accuracy of both, and the seconds of both together."""
    began = time.perf_counter()
    overrides = [f"seed={seed}", f"directory={folder}"]
    teacher = load_example(EXAMPLE, [*overrides, f"name={name}-teacher", *TEACHER, *changes])
    path = Path(folder, f"{name}-teacher-sft")
    with redirect_stdout(sys.stderr):
        sft(teacher, overwrite=False)
        student = load_example(EXAMPLE, [*overrides, f"name={name}", f"teacher={{path: '{path / 'model'}'}}"])
        distill(student, overwrite=False)
    goal = _last(path, "sft/accuracy")
    reached = _last(Path(folder, f"{name}-distill"), "validation/accuracy")
    spent_s = round(time.perf_counter() - began, 1)
    typer.echo(f"{name}: teacher {goal:.3f}, student {reached:.3f} in {spent_s:.0f} s")
    return {"teacher": goal, "student": reached, "gap": round(goal - reached, 4), "spent_s": spent_s}


def _last(path: Path, name: str) -> float:
    return [line[name] for line in read_lines(path / "metrics.jsonl") if name in line][-1]
