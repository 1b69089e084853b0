"""Gain of the demo: warm start, then RL, for three seeds and for a control with permuted rewards."""

from __future__ import annotations

from pathlib import Path

from benchmarks.gains import gains, smallest
from benchmarks.result import Result

SEEDS = (0, 1, 2)
BOUND = 0.3
EXAMPLE = Path("examples/arithmetic.yaml")
CONTROL = "algorithm.advantage=benchmarks.control:shuffled"


def run() -> Result:
    """The smallest gain in held-out accuracy over the seeds, against 0.3; the details have seeds and control."""
    results = gains(EXAMPLE, SEEDS, control=CONTROL)
    return Result(
        name="learning",
        unit="held-out accuracy gained",
        higher_is_better=True,
        ours=smallest(results),
        bound=BOUND,
        details=results,
    )
