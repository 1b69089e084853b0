"""Gain of a small model on FrozenLake on 4 by 4 cells, after a warm start from a scripted agent."""

from __future__ import annotations

from pathlib import Path

from benchmarks.gains import gains, smallest
from benchmarks.result import Result

SEEDS = (0, 1)
BOUND = 0.2
EXAMPLE = Path("examples/frozen_lake.yaml")
CONTROL = "algorithm.advantage=benchmarks.control:shuffled_turns"


def run() -> Result:
    """The smaller gain in greedy success on 300 unseen worlds, against 0.2; the details have seeds and control."""
    results = gains(EXAMPLE, SEEDS, control=CONTROL)
    return Result(
        name="learn_frozen_lake",
        unit="held-out success gained",
        higher_is_better=True,
        ours=smallest(results),
        bound=BOUND,
        details=results,
    )
