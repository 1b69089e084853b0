"""Off-policy algorithms under asynchrony: a small model that really trains, with stale samples and without.

The task is that of the benchmark `async_cpu` without its delays: copy a digit in each of four turns. Every step is
split into several updates, so that samples are also off-policy within a step.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.papers.figure import Claim, Figure, Report, curve
from roll.commands import train as commands
from roll.config.load import load
from roll.preflight import preflight
from roll.tracking.sinks import read_lines

STEPS, EVERY, GROUPS, SIBLINGS, TURNS = 60, 10, 16, 8, 4
RATIO = 4
TOLERANCE = 0.03
_MOST_CURVES = 6
"""Curves of different colours in one picture; the table has all runs."""
_GRPO = {"advantage": "group_normalised", "aggregation": "token_mean", "minibatches": 2}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "GRPO": {**_GRPO, "loss": "clipped"},
    "Decoupled PPO": {**_GRPO, "loss": {"kind": "decoupled", "clip_low": 0.2, "clip_high": 0.2}},
    "TIS": {**_GRPO, "loss": {"kind": "truncated_importance", "cap": 2.0}},
    "CISPO": {**_GRPO, "loss": {"kind": "cispo", "clip_low": 1.0, "clip_high": 0.2}},
    "TOPR": {**_GRPO, "loss": {"kind": "topr", "positive": 1.0, "negative": 1.0, "low": 0.0, "high": 1.0}},
    "weighted TOPR": {**_GRPO, "loss": {"kind": "topr", "positive": 1.0, "negative": 0.5, "low": 0.0, "high": 1.0}},
}
"""Every algorithm differs from GRPO in its loss only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedRun:
    """Result of one run."""

    curve: list[tuple[float, float]]
    """Held-out accuracy by step."""
    staleness: float
    """Mean staleness of the trained tokens, in steps."""

    @property
    def accuracy(self) -> float:
        """Mean of the last three measurements."""
        return sum(value for _, value in self.curve[-3:]) / 3


def stability(report: Report) -> Figure:
    """Held-out accuracy of each algorithm with an asynchronous ratio, against the synchronous run."""
    synchronous = train(ALGORITHMS["GRPO"], 0)
    report(f"synchronous GRPO: {synchronous.accuracy:.3f}")
    runs: dict[str, TrainedRun] = {}
    for name, algorithm in ALGORITHMS.items():
        began = time.perf_counter()
        runs[name] = train(algorithm, RATIO)
        report(f"{name}, ratio {RATIO}: {runs[name].accuracy:.3f} ({time.perf_counter() - began:.0f} s)")
    corrected = {name: each for name, each in runs.items() if name != "GRPO"}
    best = max(each.accuracy for each in corrected.values())
    return Figure(
        title=f"Off-policy algorithms: held-out accuracy at ratio {RATIO}",
        x_label="step",
        y_label="held-out accuracy",
        series=[
            curve("GRPO, synchronous", synchronous.curve),
            *(curve(name, each.curve) for name, each in runs.items()),
        ][:_MOST_CURVES],
        columns=["algorithm", "ratio", "mean staleness", "accuracy", "against synchronous GRPO"],
        rows=[
            _row("GRPO", 0, synchronous, synchronous),
            *(_row(name, RATIO, each, synchronous) for name, each in runs.items()),
        ],
        claims=[
            Claim(
                text="the best asynchronous run is on par with the synchronous one",
                shown=best >= synchronous.accuracy - TOLERANCE,
            ),
            Claim(
                text=f"every off-policy algorithm ends within {TOLERANCE} of the synchronous run",
                shown=all(each.accuracy >= synchronous.accuracy - TOLERANCE for each in corrected.values()),
            ),
        ],
    )


def train(algorithm: Mapping[str, Any], ratio: int) -> TrainedRun:
    """Train from random weights, with the code of `roll train`."""
    random.seed(0)
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(sys.stderr):
        path = Path(folder, "run.yaml")
        path.write_text(run_file(folder, algorithm, ratio), encoding="utf-8")
        loaded = load(path)
        preflight(loaded)
        commands.train(loaded, overwrite=False)
        lines = list(read_lines(Path(folder, "papers", "metrics.jsonl")))
    return TrainedRun(
        curve=[(line["step"], line["validation/reward"]) for line in lines if "validation/reward" in line],
        staleness=sum(line["staleness/mean"] for line in lines if "staleness/mean" in line) / STEPS,
    )


def _row(name: str, ratio: int, each: TrainedRun, synchronous: TrainedRun) -> list[str]:
    difference = each.accuracy - synchronous.accuracy
    return [name, str(ratio), f"{each.staleness:.2f}", f"{each.accuracy:.3f}", f"{difference:+.3f}"]


def run_file(folder: str, algorithm: Mapping[str, Any], ratio: int) -> str:
    """The file of a run."""
    env = {"kind": "benchmarks.async_cpu:Copying", "turns": TURNS}
    tree = {
        "name": "papers",
        "directory": folder,
        "seed": 0,
        "threads": 1,
        "steps": STEPS,
        "model": {
            "shape": {"alphabet": "0123456789=", "hidden": 64, "layers": 2, "heads": 4, "kv_heads": 4, "mlp": 128}
        },
        "algorithm": dict(algorithm),
        "tasks": [{"name": "copy", "data": {"kind": "seeds", "count": 100_000}, "env": env}],
        "rollout": {
            "groups_per_step": GROUPS,
            "group_size": SIBLINGS,
            "max_staleness": ratio,
            "max_seq_len": 64,
            "max_new_tokens": 1,
            "max_turns": TURNS,
        },
        "actor_train": {"devices": "cpu", "optimizer": {"lr": 2e-3, "warmup_steps": 5, "schedule": "linear"}},
        "actor_infer": {"max_num_seqs": 64},
        "validation": {
            "every": EVERY,
            "tasks": [{"name": "held_out", "data": {"kind": "seeds", "count": 200, "start": 1_000_000}, "env": env}],
        },
        "checkpoint": {"every": 0},
        "tracking": {"tensorboard": False},
    }
    return json.dumps(tree)
