"""Gain of asynchrony when trajectories wait for an environment after each of five responses."""

from __future__ import annotations

from benchmarks.async_single_turn import compare
from benchmarks.result import Result
from benchmarks.tail import tail

TURNS, STEPS = 5, 20


def run() -> Result:
    """Steps per virtual hour at staleness 4 with the best split, against the same scheduler at staleness 0."""
    return compare("async_multi_turn", tail(steps=STEPS, turns=TURNS))
