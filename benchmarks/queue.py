"""Generation steps with a queue of single trajectories and redundant groups, against the batch at once.

Both decode the same distribution of lengths on virtual time; the queue is the real scheduler and router.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import typer

from benchmarks.result import Result
from roll.sim.run import simulate
from roll.sim.tail import DEVICES, GROUP_SIZE, SLOTS, tail
from roll.sim.units import batch_at_once

STEPS = 30
REDUNDANT = 16


def run() -> Result:
    """Generation steps in a virtual hour, against those of the batch at once with siblings as one unit."""
    setting = tail(steps=STEPS)
    plain = simulate(setting)
    queue_s = plain.mean("time/wait")
    batch_s = float(
        np.mean([batch_at_once(groups, devices=DEVICES, lanes=SLOTS // GROUP_SIZE) for groups in plain.alone_s])
    )
    typer.echo(f"the batch at once: {batch_s:.0f} virtual seconds a step; a queue of trajectories: {queue_s:.0f}")
    found = simulate(replace(setting, rollout={"redundant_groups": REDUNDANT}))
    redundant_s = found.mean("time/wait")
    typer.echo(f"with {REDUNDANT} redundant groups: {redundant_s:.0f}")
    return Result(
        name="queue",
        unit="generation steps a virtual hour",
        higher_is_better=True,
        ours=3600 / redundant_s,
        peer=3600 / batch_s,
        details={
            "batch_at_once_s": round(batch_s, 1),
            "queue_s": round(queue_s, 1),
            "ratio_without_redundancy": round(batch_s / queue_s, 2),
            "queue_with_redundancy_s": round(redundant_s, 1),
            "redundant_groups": REDUNDANT,
            "stale_groups_a_step": round(found.mean("stale/groups"), 1),
            "slowest_trajectory_s": round(plain.slowest_s(), 1),
        },
    )
