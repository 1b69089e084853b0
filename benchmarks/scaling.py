"""How many generators one controller can serve, and how fast that is simulated.

The controller's own CPU time and the cost of every remote call are charged to the virtual clock, so it falls behind
here where it would in reality. Everything grows with the number of generators: groups in a step, groups under way.
"""

from __future__ import annotations

import gc
import resource
from typing import Any

import typer

from benchmarks.result import Result
from roll.sim.generator import Speed
from roll.sim.lengths import LogNormal
from roll.sim.remote import CallCost
from roll.sim.run import Outcome, Setting, simulate

SIZES = (8, 64, 512, 4096)
WINDOW_S, HOUR_S = 300.0, 3600.0
SLOTS, TOKENS_PER_S, SIGMA = 16, 10.0, 0.2
MEAN_TOKENS, HOUR_TOKENS = 512, 1024
"""Of a reply, in the five minutes and in the hour."""
HOUR_GRAIN = 64
"""Only durations count in the hour, so one token may stand for so many."""
STALENESS, UPDATE_S, GROUP_SIZE = 5.0, 15.0, 8


def run() -> Result:
    """Real seconds that an hour of 64 generators takes to simulate, under a minute; sizes in the details."""
    sizes: dict[str, dict[str, Any]] = {}
    for size in SIZES:
        found = simulate(workload(size, until_s=WINDOW_S, call_cost=CallCost()))
        sizes[str(size)] = describe(found, size)
        typer.echo(f"{size} generators: {sizes[str(size)]}")
        gc.collect()
    hour = simulate(workload(64, until_s=HOUR_S, mean_tokens=HOUR_TOKENS, grain=HOUR_GRAIN))
    typer.echo(f"an hour of 64 generators: {hour.num_replies} replies in {hour.real_s:.0f} s")
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
) -> Setting:
    """So many generators with everything else in proportion; one token stands for `grain` of them."""
    median = mean_tokens / grain / LogNormal(median=1.0, sigma=SIGMA).mean
    return Setting(
        steps=2 + int(until_s / UPDATE_S),  # more than there is time for
        lengths=LogNormal(median=median, sigma=SIGMA),
        speed=Speed(slots=SLOTS, tokens_per_s=TOKENS_PER_S / grain, receive_s=1.0, resume_s=0.5),
        num_generators=size,
        update_s=UPDATE_S,
        groups_per_step=size,
        group_size=GROUP_SIZE,
        max_staleness=STALENESS,
        call_cost=call_cost,
        until_s=until_s,
    )


def describe(found: Outcome, size: int) -> dict[str, Any]:
    """What the controller and the generators did."""
    return {
        "decoding": round(found.slot_s / (size * SLOTS * found.elapsed_s), 3),
        "controller_busy": round(found.controller_s / found.elapsed_s, 3),
        "replies_per_s": round(found.num_replies / found.elapsed_s, 1),
        "calls_per_s": round(found.num_calls / found.elapsed_s, 1),
        "steps": len(found.ends_s),
        "cpu_us_per_reply": round(
            (found.controller_s - found.num_calls * CallCost().busy_s) / max(1, found.num_replies) * 1e6
        ),
        "real_s": round(found.real_s, 1),
        "peak_gib": round(
            resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2
        ),  # of this size and smaller ones
    }
