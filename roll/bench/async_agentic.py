"""The workload of `async_cpu` with more room to run ahead of the trainer."""

from __future__ import annotations

from roll.bench.async_cpu import compare
from roll.bench.result import Result

STALENESS = 4


def run() -> Result:
    """Steps a second at staleness 4 against 0, equal steps, mean of three seeds; and what both have learned."""
    return compare("async_agentic", STALENESS)
