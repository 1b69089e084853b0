"""Generation steps with a queue of single trajectories and redundant groups, against static batching.

Both decode the same distribution of lengths in virtual time; the queue is the real scheduler and router.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import typer

from benchmarks.result import Result
from benchmarks.tail import DEVICES, GROUP_SIZE, SLOTS, tail
from roll.sim.run import simulate

STEPS = 30
REDUNDANT = 16


def run() -> Result:
    """Generation steps per virtual hour, against static batching by sibling group."""
    setting = tail(steps=STEPS)
    plain = simulate(setting)
    queue_s = plain.mean("time/wait")
    batch_s = float(
        np.mean([batch_at_once(groups, devices=DEVICES, lanes=SLOTS // GROUP_SIZE) for groups in plain.alone_s])
    )
    typer.echo(f"static batching: {batch_s:.0f} virtual seconds per step; a queue of trajectories: {queue_s:.0f}")
    redundant = simulate(replace(setting, rollout={"redundant_groups": REDUNDANT}))
    redundant_s = redundant.mean("time/wait")
    typer.echo(f"with {REDUNDANT} redundant groups: {redundant_s:.0f}")
    return Result(
        name="queue",
        unit="generation steps per virtual hour",
        higher_is_better=True,
        ours=3600 / redundant_s,
        peer=3600 / batch_s,
        details={
            "batch_at_once_s": round(batch_s, 1),
            "queue_s": round(queue_s, 1),
            "ratio_without_redundancy": round(batch_s / queue_s, 2),
            "queue_with_redundancy_s": round(redundant_s, 1),
            "redundant_groups": REDUNDANT,
            "stale_groups_a_step": round(redundant.mean("stale/groups"), 1),
            "slowest_trajectory_s": round(plain.slowest_s(), 1),
        },
    )


def batch_at_once(groups: Sequence[Sequence[float]], *, devices: int, lanes: int) -> float:
    """Seconds until the last group is done without a queue; a group is the list of its siblings' durations.

    Groups are assigned round robin before the start. A device decodes `lanes` groups at a time; the next one enters
    when the slowest sibling of one of them has ended.
    """
    return max(_device([max(group) for group in groups[first::devices]], lanes) for first in range(devices))


def _device(durations: Sequence[float], lanes: int) -> float:
    free = [0.0] * lanes
    for duration in durations:
        heapq.heapreplace(free, free[0] + duration)
    return max(free)
