"""The controller of the asynchronous ratio against every fixed ratio, on a workload whose lengths triple midway.

Virtual time; scheduler, buffer, router, loop and controller are real. A step has 8 groups of 4 attempts, staleness is
at most 1. Lengths are log-normal with median 100 tokens and sigma 0.6; after half of the steps, attempts are three
times as long. One answer of the environment in twelve takes 24 s, all others 1 s. Two generators run 4 requests each,
at 80 tokens/s per request; an update takes 4 s. At first steps wait for slow answers, which redundant groups replace;
later generators are full, and a redundant group takes the place of another one. So every fixed ratio loses in one
half.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import typer

from benchmarks.result import Result
from roll.sim.batched import DecodeSpeed
from roll.sim.run import SimulationConfig, SimulationResult, simulate
from roll.sim.workload import LogNormal

STEPS = 240
GROUPS, SIBLINGS = 8, 4
STALENESS, REDUNDANT = (0, 1), (0, 8)
FIXED = ((0.0, 8), (0.5, 8), *((1.0, redundant) for redundant in range(9)))
"""Staleness and redundant groups of the runs without the controller."""


@dataclass(slots=True)
class Tripling:
    """Lengths that triple after a number of steps; an attempt that continues keeps its length."""

    before: LogNormal
    num_steps: int
    """Steps before the change."""
    finished: int = 0
    _factors: dict[int, float] = field(default_factory=dict[int, float])

    def draw(self, key: int) -> float:
        factor = self._factors.setdefault(key, 3.0 if self.finished >= self.num_steps else 1.0)
        return factor * self.before.draw(key)

    def note_step(self, step: int) -> None:
        """Count a finished step."""
        self.finished = step


def run() -> Result:
    """Steps per virtual hour with the controller, against the best fixed ratio."""
    fixed = {
        f"staleness {staleness:g}, redundant {redundant}": measure(staleness, {"redundant_groups": redundant})
        for staleness, redundant in FIXED
    }
    adapted = measure(1.0, {"adapt": {"max_staleness": STALENESS, "redundant_groups": REDUNDANT}})
    best = max(fixed, key=lambda ratio: fixed[ratio]["steps_per_hour"])
    halves = {half: max(numbers[half] for numbers in fixed.values()) for half in ("first_half", "second_half")}
    losses = {
        ratio: round(max(1 - numbers[half] / most for half, most in halves.items()), 3)
        for ratio, numbers in fixed.items()
    }
    in_each_half = len(halves) / sum(1 / most for most in halves.values())
    typer.echo(f"controller: {adapted}; best fixed ratio: {best} {fixed[best]}")
    return Result(
        name="adapt",
        unit="steps per virtual hour",
        higher_is_better=True,
        ours=adapted["steps_per_hour"],
        peer=fixed[best]["steps_per_hour"],
        details={
            "of_the_best_of_each_half": round(adapted["steps_per_hour"] / in_each_half, 3),
            "least_loss_in_a_half": min(losses.values()),
            "controller": adapted,
            "best": best,
            "fixed": fixed,
            "loss_in_a_half": losses,
        },
    )


def measure(staleness: float, rollout: Mapping[str, Any], steps: int = STEPS) -> dict[str, float]:
    """One simulated run: steps per virtual hour, as a whole and by half, mean staleness and lost groups per step."""
    result = simulate(replace(workload(steps), max_staleness=staleness, rollout=dict(rollout)))
    half = steps // 2
    return {
        "steps_per_hour": round(3600 / result.step_s(), 1),
        "first_half": round(3600 / result.step_s(0, half), 1),
        "second_half": round(3600 / result.step_s(half), 1),
        "mean_staleness": round(result.mean("staleness/mean"), 2),
        "lost_groups": round(_lost(result), 2),
    }


def workload(steps: int = STEPS) -> SimulationConfig:
    """The run without staleness and redundancy."""
    lengths = Tripling(LogNormal(median=100, sigma=0.6), steps // 2)
    return SimulationConfig(
        steps=steps,
        lengths=lengths,
        on_step=lengths.note_step,
        speed=DecodeSpeed(slots=4, step_s=1 / 80, receive_s=0.5),
        num_generators=2,
        update_s=4.0,
        groups_per_step=GROUPS,
        group_size=SIBLINGS,
        env={"kind": "roll.sim.workload:RecordedEnv", "waits_s": [1.0] * 11 + [24.0], "ends_s": [0.0]},
    )


def _lost(result: SimulationResult) -> float:
    """Groups per step that became too old."""
    return sum(metrics.get("stale/groups", 0.0) for metrics in result.metrics) / len(result.metrics)
