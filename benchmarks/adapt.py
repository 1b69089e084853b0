"""The controller of the asynchronous ratio against every fixed ratio, on a workload whose lengths triple midway.

Virtual time; scheduler, buffer, router, loop and controller are real. 8 groups of 4 attempts per step, two generators
with 16 slots each. Lengths are log-normal with median 100 tokens (5 s) and sigma 0.6, environments answer after a
log-normal time with median 4 s and sigma 0.8, and an update takes 6 s. From the middle of the run on, attempts are
three times as long.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import typer

from benchmarks.result import Result
from roll.sim.engines import GeneratorSpeed
from roll.sim.run import SimulationConfig, SimulationResult, simulate
from roll.sim.workload import LogNormal

STEPS = 400
GROUPS, SIBLINGS = 8, 4
STALENESS, REDUNDANT = (0, 4), (0, 4)
FIXED = tuple(itertools.product((0, 1, 2, 3, 4), (0, 2, 4)))


@dataclass(slots=True)
class Tripling:
    """Lengths that are three times as long from an attempt on; an attempt that continues keeps its length."""

    before: LogNormal
    num_attempts: int
    """Attempts before the change."""
    _factors: dict[int, float] = field(default_factory=dict[int, float])

    def draw(self, key: int) -> float:
        factor = self._factors.setdefault(key, 3.0 if len(self._factors) >= self.num_attempts else 1.0)
        return factor * self.before.draw(key)


def run() -> Result:
    """Steps per virtual hour with the controller, against the best fixed ratio."""
    fixed = {
        f"staleness {staleness}, redundant {redundant}": measure(
            staleness, {"redundant_groups": redundant} if redundant else {}
        )
        for staleness, redundant in FIXED
    }
    adapted = measure(1, {"adapt": {"max_staleness": STALENESS, "redundant_groups": REDUNDANT}})
    best = max(fixed.values(), key=lambda each: each["steps_per_hour"])
    halves = {half: max(each[half] for each in fixed.values()) for half in ("first_half", "second_half")}
    losses = {
        name: round(max(1 - each[half] / most for half, most in halves.items()), 3) for name, each in fixed.items()
    }
    typer.echo(f"controller: {adapted}; best fixed ratio: {best}")
    return Result(
        name="adapt",
        unit="steps per virtual hour",
        higher_is_better=True,
        ours=adapted["steps_per_hour"],
        peer=best["steps_per_hour"],
        details={"controller": adapted, "fixed": fixed, "worst_loss_in_a_half": losses},
    )


def measure(staleness: float, rollout: Mapping[str, Any], steps: int = STEPS) -> dict[str, float]:
    """One simulated run: steps per virtual hour, as a whole and by half, mean staleness and lost groups per step."""
    setting = replace(workload(steps), max_staleness=staleness, rollout=dict(rollout))
    result = simulate(setting)
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
    return SimulationConfig(
        steps=steps,
        lengths=Tripling(LogNormal(median=100, sigma=0.6), steps // 2 * GROUPS * SIBLINGS),
        speed=GeneratorSpeed(slots=16, tokens_per_s=20.0, receive_s=0.5),
        num_generators=2,
        update_s=6.0,
        groups_per_step=GROUPS,
        group_size=SIBLINGS,
        env={"median_s": 4.0, "sigma": 0.8},
    )


def _lost(result: SimulationResult) -> float:
    """Groups per step that became too old."""
    return sum(metrics.get("stale/groups", 0.0) for metrics in result.metrics) / len(result.metrics)
