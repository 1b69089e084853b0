"""Devices of the trainer lent to generators: the real scheduler, router, publisher and lender on virtual time."""

from dataclasses import replace
from functools import cache

import pytest

from roll.sim.engines import GeneratorSpeed
from roll.sim.run import SimulationConfig, SimulationResult, simulate
from roll.sim.sharing import TimeSharing
from roll.sim.workload import LogNormal

STEPS, EDGE = 8, 2
IN_TURNS = TimeSharing(num_generators=2, move_s=0.5)
"""Of four generators. Their devices change hands in 1 s, besides the version."""
LENT = replace(IN_TURNS, lend_factor=2.0)
SETTING = SimulationConfig(
    steps=STEPS,
    lengths=LogNormal(median=40, sigma=0.7),
    speed=GeneratorSpeed(slots=2, tokens_per_s=2.0, receive_s=0.25, resume_s=0.25),
    num_generators=4,
    update_s=50.0,
    groups_per_step=8,
    group_size=4,
    max_staleness=2.0,
    rollout={"max_new_tokens": 200},
)


@cache
def simulated(sharing: TimeSharing | None) -> SimulationResult:
    """Without sharing, two generators have devices of their own, and the trainer has the other two."""
    if sharing is None:
        return simulate(replace(SETTING, num_generators=2))
    return simulate(replace(SETTING, time_sharing=sharing))


def step_s(result: SimulationResult) -> float:
    return result.step_s(EDGE, STEPS - EDGE)


def test_lending_beats_idle_devices_and_generators_that_are_all_held_during_updates() -> None:
    assert step_s(simulated(None)) > 1.4 * step_s(simulated(LENT))
    assert step_s(simulated(IN_TURNS)) > 1.15 * step_s(simulated(LENT))
    assert len(simulated(LENT).ends_s) == STEPS


@pytest.mark.slow
def test_no_token_is_past_the_bound_on_age_whether_devices_are_lent_or_not() -> None:
    tight = replace(SETTING, max_staleness=1.0, time_sharing=LENT)
    assert simulate(tight).max_token_staleness == 1
    assert simulated(LENT).max_token_staleness <= 2


@pytest.mark.slow
def test_moves_that_take_longer_than_the_waits_are_not_repeated() -> None:
    dear = simulated(replace(LENT, move_s=200.0))
    assert dear.ends_s[0] > 400, "the devices of the first wait have to be returned"
    assert abs(dear.step_s(3) / simulated(None).step_s(3) - 1) < 0.1
