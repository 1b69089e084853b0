"""Gain of asynchrony on the workload *tail* at equal devices: the real scheduler in virtual time."""

from __future__ import annotations

from statistics import fmean
from typing import Any

import typer

from benchmarks.result import Result
from benchmarks.split import Baseline, Gain, baseline, gains
from benchmarks.tail import tail
from roll.sim.run import SimulationConfig

STALENESSES = (1.0, 2.0, 4.0)
STEPS = 30


def run() -> Result:
    """Steps per virtual hour at staleness 4 with the best split, against the same scheduler at staleness 0."""
    return compare("async_single_turn", tail(steps=STEPS))


def compare(name: str, setting: SimulationConfig) -> Result:
    """The result of one workload; the details have every `max_staleness`."""
    base = baseline(setting)
    typer.echo(
        f"synchronous: {base.step_s:.0f} virtual seconds per step, of which generation {base.generation_s:.0f} "
        f"(its slowest trajectory {fmean(base.slowest_s):.0f}, all decoding {base.decoding_s:.0f})"
    )
    results = gains(base, STALENESSES, typer.echo)
    return Result(
        name=name,
        unit="steps per virtual hour",
        higher_is_better=True,
        ours=3600 * results[-1].ratio / base.step_s,
        peer=3600 / base.step_s,
        details=_describe_baseline(base)
        | {f"staleness {gain.max_staleness:g}": _describe_gain(gain) for gain in results},
    )


def _describe_baseline(base: Baseline) -> dict[str, Any]:
    return {
        "synchronous_step_s": round(base.step_s, 1),
        "generation_s": round(base.generation_s, 1),
        "slowest_trajectory_s": round(fmean(base.slowest_s), 1),
        "decoding_s": round(base.decoding_s, 1),
    }


def _describe_gain(gain: Gain) -> dict[str, Any]:
    return {
        "ratio": round(gain.ratio, 2),
        "age_bound": round(gain.staleness_bound, 2),
        "work_bound": round(gain.work_bound, 2),
        "greatest_age": gain.max_token_staleness,
        "devices_generating": gain.num_generating,
        "tried": {str(split): round(ratio, 2) for split, ratio in sorted(gain.tried.items())},
    }
