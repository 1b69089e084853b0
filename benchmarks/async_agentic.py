"""The workload of `async_cpu` at staleness 4 instead of 2."""

from __future__ import annotations

from benchmarks.async_cpu import compare
from benchmarks.result import Result

STALENESS = 4
SEEDS = (0,)
"""One seed: `async_cpu` measures the effect of stale data on accuracy, with three."""


def run() -> Result:
    """Steps per second at staleness 4 against 0 over equally many steps, with the accuracy of both."""
    return compare("async_agentic", STALENESS, seeds=SEEDS)
