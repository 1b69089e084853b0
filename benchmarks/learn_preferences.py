"""Gain of `roll dpo` on sums after a warm start, for two seeds and a control with randomly swapped pairs."""

from __future__ import annotations

import random
import sys
import tempfile
import time
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from benchmarks.gains import load_example, smallest, warm_start
from benchmarks.result import Result
from roll.commands.dpo import dpo
from roll.data.arithmetic import answer_pairs
from roll.data.preferences import Preference
from roll.tracking.sinks import read_lines

SEEDS = (0, 1)
BOUND = 0.2
EXAMPLE = Path("examples/preferences.yaml")
CONTROL = "dpo.data={kind: 'benchmarks.learn_preferences:permuted', pad: true, wrong: 8}"


def permuted(**options: Any) -> list[Preference]:
    """The pairs of `answer_pairs`, of which a random half is swapped."""
    draw = random.Random(0)
    pairs = answer_pairs(**options)
    return [replace(pair, replies=pair.replies[::-1]) if draw.random() < 0.5 else pair for pair in pairs]


def run() -> Result:
    """The smallest gain in held-out accuracy over the seeds, against 0.2; the details have seeds and control."""
    results: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for seed in SEEDS:
            began = time.perf_counter()
            overrides = [f"seed={seed}", f"directory={folder}", f"name=seed-{seed}"]
            model = warm_start(EXAMPLE, overrides)
            results[f"seed {seed}"] = _learn([*overrides, model], began)
            if seed == SEEDS[0]:
                results["control"] = _learn([*overrides, "name=control", model, CONTROL], time.perf_counter())
    return Result(
        name="learn_preferences",
        unit="held-out accuracy gained",
        higher_is_better=True,
        ours=smallest(results),
        bound=BOUND,
        details=results,
    )


def _learn(overrides: list[str], began: float) -> dict[str, Any]:
    """Run `roll dpo`; returns held-out accuracy before and after, and the seconds since `began`."""
    loaded = load_example(EXAMPLE, overrides)
    with redirect_stdout(sys.stderr):
        dpo(loaded, overwrite=False)
    lines = read_lines(Path(loaded.run.directory, f"{loaded.run.name}-dpo", "metrics.jsonl"))
    accuracies = [line["validation/accuracy"] for line in lines if "validation/accuracy" in line]
    before, after = accuracies[0], accuracies[-1]
    numbers = {"before": round(before, 4), "after": round(after, 4), "gain": round(after - before, 4)}
    typer.echo(f"{loaded.run.name}: {before:.3f} -> {after:.3f}")
    return {**numbers, "spent_s": round(time.perf_counter() - began, 1)}
