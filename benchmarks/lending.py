"""Devices of the trainer lent to generators on a workload with a long tail, against a run that lends nothing.

The trainer's state needs four of the eight devices. Without lending, either these generate nothing, or they have
generators too, and no generator serves during an update. The better of the two is the peer. The same time is charged
for every move of parts to the host or back.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import typer

from benchmarks.result import Result
from benchmarks.tail import DEVICES, MEDIAN_S, TOKENS_PER_S, tail
from roll.sim.run import SimulationConfig, simulate
from roll.sim.sharing import TimeSharing

STEPS, EDGE = 24, 5
TRAINING_DEVICES, UPDATE_S, MOVE_S, LEND_FACTOR = 4, 66.0, 2.0, 2.0
LONGEST = 8
"""Longest response, in medians."""


def run() -> Result:
    """Steps per virtual hour at staleness 2 with lending, against the better run without; also for other settings."""
    results = {
        f"staleness {staleness}, moves of {move_s:g} s": _compare(staleness, move_s)
        for staleness, move_s in ((2, MOVE_S), (1, MOVE_S), (2, 5 * MOVE_S))
    }
    first = next(iter(results.values()))
    return Result(
        name="lending",
        unit="steps per virtual hour",
        higher_is_better=True,
        ours=3600 / first["lent_s"],
        peer=3600 / min(first["divided_s"], first["in_turns_s"]),
        details=results,
    )


def workload(max_staleness: int) -> SimulationConfig:
    """The workload *tail*, with a limit on the length of responses."""
    rollout = {"max_new_tokens": int(LONGEST * MEDIAN_S * TOKENS_PER_S)}
    return replace(tail(steps=STEPS), max_staleness=float(max_staleness), update_s=UPDATE_S, rollout=rollout)


def _compare(max_staleness: int, move_s: float) -> dict[str, Any]:
    """Seconds per step of the three, and the greatest age of a token with lending."""
    setting = workload(max_staleness)
    in_turns = TimeSharing(num_generators=TRAINING_DEVICES, move_s=move_s)
    settings = {
        "divided": replace(setting, num_generators=DEVICES - TRAINING_DEVICES),
        "in_turns": replace(setting, time_sharing=in_turns),
        "lent": replace(setting, time_sharing=replace(in_turns, lend_factor=LEND_FACTOR)),
    }
    results = {name: simulate(each) for name, each in settings.items()}
    steps = {name: round(result.step_s(EDGE, STEPS - EDGE), 1) for name, result in results.items()}
    typer.echo(f"staleness {max_staleness}, moves of {move_s:g} s: seconds per step {steps}")
    return {
        **{f"{name}_s": seconds for name, seconds in steps.items()},
        "ratio": round(min(steps["divided"], steps["in_turns"]) / steps["lent"], 3),
        "greatest_age": results["lent"].max_token_staleness,
    }
