"""The workload of `async_cpu` with more room to run ahead of the trainer."""

from __future__ import annotations

from benchmarks.async_cpu import compare
from benchmarks.result import Result

STALENESS = 4
SEEDS = (0,)
"""One: how well stale data teaches is the matter of `async_cpu`, which takes three."""


def run() -> Result:
    """Steps a second at staleness 4 against 0, equal steps; and what both have learned."""
    return compare("async_agentic", STALENESS, seeds=SEEDS)
