"""Number of generators that one controller can serve, and the speed of simulating them.

The controller's CPU time and the cost of every remote call are charged to the virtual clock, so the controller falls
behind in the simulation where it would in reality. Groups per step and in flight grow with the number of generators.
"""

from __future__ import annotations

import gc
import resource
from typing import Any

import typer

from benchmarks.result import Result
from roll.sim.engines import CallCost, GeneratorSpeed
from roll.sim.run import SimulationConfig, SimulationResult, simulate
from roll.sim.workload import LogNormal

SIZES = (8, 64, 512, 4096)
WINDOW_S, HOUR_S = 300.0, 3600.0
SLOTS, TOKENS_PER_S, SIGMA = 16, 10.0, 0.2
MEAN_TOKENS, HOUR_TOKENS = 512, 1024
"""Mean tokens per response, in the five minutes and in the hour."""
HOUR_GRAIN = 64
"""Tokens that one simulated token represents in the hour, where only durations count."""
STALENESS, UPDATE_S, GROUP_SIZE = 5.0, 15.0, 8


def run() -> Result:
    """Real seconds to simulate one hour of 64 generators, against 60; the details have the other sizes."""
    sizes: dict[str, dict[str, Any]] = {}
    for size in SIZES:
        result = simulate(workload(size, until_s=WINDOW_S, call_cost=CallCost()))
        sizes[str(size)] = describe(result, size)
        typer.echo(f"{size} generators: {sizes[str(size)]}")
        gc.collect()
    hour = simulate(workload(64, until_s=HOUR_S, mean_tokens=HOUR_TOKENS, grain=HOUR_GRAIN))
    typer.echo(f"an hour of 64 generators: {hour.num_replies} responses in {hour.real_s:.0f} s")
    return Result(
        name="scaling",
        unit="s",
        higher_is_better=False,
        ours=hour.real_s,
        bound=60.0,
        details={"hour_of_64_replies": hour.num_replies, "generators": sizes},
    )


def workload(
    size: int,
    *,
    until_s: float,
    call_cost: CallCost | None = None,
    mean_tokens: int = MEAN_TOKENS,
    grain: int = 1,
) -> SimulationConfig:
    """A simulation of `size` generators with the rest in proportion; one token represents `grain` tokens."""
    median = mean_tokens / grain / LogNormal(median=1.0, sigma=SIGMA).mean
    return SimulationConfig(
        steps=2 + int(until_s / UPDATE_S),  # more than fit in `until_s`
        lengths=LogNormal(median=median, sigma=SIGMA),
        speed=GeneratorSpeed(slots=SLOTS, tokens_per_s=TOKENS_PER_S / grain, receive_s=1.0, resume_s=0.5),
        num_generators=size,
        update_s=UPDATE_S,
        groups_per_step=size,
        group_size=GROUP_SIZE,
        max_staleness=STALENESS,
        call_cost=call_cost,
        until_s=until_s,
    )


def describe(result: SimulationResult, size: int) -> dict[str, Any]:
    """Utilisation and rates of the controller and the generators."""
    return {
        "decoding": round(result.slot_s / (size * SLOTS * result.elapsed_s), 3),
        "controller_busy": round(result.controller_s / result.elapsed_s, 3),
        "replies_per_s": round(result.num_replies / result.elapsed_s, 1),
        "calls_per_s": round(result.num_calls / result.elapsed_s, 1),
        "steps": len(result.ends_s),
        "cpu_us_per_reply": round(
            (result.controller_s - result.num_calls * CallCost().busy_s) / max(1, result.num_replies) * 1e6
        ),
        "real_s": round(result.real_s, 1),
        # the peak of this size and all smaller ones
        "peak_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
    }
