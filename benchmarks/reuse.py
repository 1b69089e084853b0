"""Sampled tokens until the demo answers 90 % of its held-out sums, with and without reuse of groups."""

from __future__ import annotations

import sys
import tempfile
from contextlib import redirect_stdout

import typer

from benchmarks.gains import load_example, warm_start
from benchmarks.learning import EXAMPLE
from benchmarks.result import Result
from roll.api import start

SEEDS = (0, 1)
ACCURACY = 0.9
EVERY = 5
"""Steps between two measurements of the held-out accuracy."""
SETTINGS = {
    "once": (),
    "twice": ("rollout.reuse=2", "rollout.max_staleness=1", "algorithm.correction=truncate"),
}


def run() -> Result:
    """Sampled tokens with reuse 2, against those of the demo; sums over the seeds."""
    tokens: dict[str, list[float]] = {name: [] for name in SETTINGS}
    with tempfile.TemporaryDirectory() as folder:
        for seed in SEEDS:
            overrides = [f"seed={seed}", f"directory={folder}", f"name=seed-{seed}", f"validation.every={EVERY}"]
            overrides.append(warm_start(EXAMPLE, overrides))
            for name, settings in SETTINGS.items():
                number = _sampled_tokens([*overrides, f"name=seed-{seed}-{name}", *settings])
                if number is None:
                    reason = f"seed {seed}, trained {name}: did not reach an accuracy of {ACCURACY}"
                    return Result(name="reuse", unit="sampled tokens", higher_is_better=False, skipped=reason)
                tokens[name].append(number)
                typer.echo(f"seed {seed}, trained {name}: {number:.0f} sampled tokens")
    return Result(
        name="reuse",
        unit="sampled tokens",
        higher_is_better=False,
        ours=sum(tokens["twice"]),
        peer=sum(tokens["once"]),
        details={"accuracy": ACCURACY, "tokens": tokens},
    )


def _sampled_tokens(overrides: list[str]) -> float | None:
    """Tokens sampled for training when a run first reaches the accuracy, which ends it; None if it never does."""
    total = 0.0
    with redirect_stdout(sys.stderr):
        training = start(load_example(EXAMPLE, overrides))
        for row in training:
            total += row.get("tokens/generated", 0.0)
            if row.get("validation/accuracy", 0.0) >= ACCURACY:
                training.stop()
                return total
    return None
