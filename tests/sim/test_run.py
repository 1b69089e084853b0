"""Whole simulated runs: the real scheduler, router, buffer and loop."""

from dataclasses import replace

import pytest

from benchmarks.queue import batch_at_once
from benchmarks.split import Baseline, baseline, gains, staleness_bound, work_bound
from roll.sim.engines import CallCost, GeneratorSpeed
from roll.sim.run import SimulationConfig, simulate
from roll.sim.workload import Constant, LogNormal

pytestmark = pytest.mark.slow

PLAIN = SimulationConfig(
    steps=6,
    lengths=Constant(value=10),
    speed=GeneratorSpeed(slots=4, tokens_per_s=5.0),
    num_generators=2,
    update_s=3.0,
    groups_per_step=4,
    group_size=4,
)
STRAGGLERS = replace(PLAIN, lengths=LogNormal(median=20, sigma=1.5), steps=12)


def test_a_synchronous_step_takes_as_long_as_worked_out_by_hand() -> None:
    found = simulate(PLAIN)
    # 16 requests of 2 s in 8 slots are 4 s; then an update of 3 s
    assert found.ends_s == pytest.approx([7.0, 14.0, 21.0, 28.0, 35.0, 42.0])
    assert [metrics["time/wait"] for metrics in found.metrics] == pytest.approx([4.0] * 6)
    assert found.num_replies == 6 * 16
    assert found.num_tokens == 6 * 160
    assert found.slot_s == pytest.approx(6 * 16 * 2.0)
    assert found.slowest_s() == pytest.approx(2.0)


def test_a_workload_may_change_after_a_step() -> None:
    steps = list[int]()
    simulate(replace(PLAIN, steps=3, on_step=steps.append))
    assert steps == [1, 2, 3]


def test_an_asynchronous_step_takes_as_long_as_its_slower_side() -> None:
    found = simulate(replace(PLAIN, max_staleness=1.0, steps=10))
    # generation (4 s a step) is the slower side, and the update of 3 s hides behind it
    assert found.step_s(3, 8) == pytest.approx(4.0, rel=0.15)
    trained = simulate(replace(PLAIN, max_staleness=1.0, steps=10, update_s=9.0))
    assert trained.step_s(3, 8) == pytest.approx(9.0)


def test_a_change_of_version_costs_its_time_in_every_step() -> None:
    found = simulate(replace(PLAIN, speed=GeneratorSpeed(slots=4, tokens_per_s=5.0, receive_s=0.5, resume_s=0.25)))
    assert found.step_s() == pytest.approx(7.75 + 0.75 / 6)  # there is one before the first step as well


@pytest.mark.parametrize("staleness", [0.0, 0.5, 1.0, 3.0])
def test_no_token_is_trained_on_past_its_bound_despite_stragglers(staleness: float) -> None:
    found = simulate(replace(STRAGGLERS, max_staleness=staleness))
    assert found.max_token_staleness <= -(-staleness // 1)
    assert staleness == 0 or found.max_token_staleness >= 1, "nothing overlapped, so nothing was tested"


def test_the_same_seed_gives_the_same_times_and_another_seed_others() -> None:
    setting = replace(STRAGGLERS, max_staleness=2.0, turns=2, env={"median_s": 3.0, "sigma": 1.0}, steps=6)
    first, second = simulate(setting), simulate(setting)
    assert first.ends_s == second.ends_s
    assert first.alone_s == second.alone_s
    assert simulate(replace(setting, seed=1)).ends_s != first.ends_s


def test_a_run_waits_for_its_environment_between_responses() -> None:
    found = simulate(
        replace(
            PLAIN,
            turns=3,
            env={"median_s": 5.0, "sigma": 0.0},
            update_s=0.0,
            speed=GeneratorSpeed(slots=16, tokens_per_s=5.0),
        )
    )
    # three replies of 2 s, and the environment takes 5 s for each
    assert found.ends_s[0] == pytest.approx(21.0)


def test_a_run_is_stopped_at_its_time_limit() -> None:
    found = simulate(replace(PLAIN, until_s=16.0))
    assert found.elapsed_s == pytest.approx(16.0)
    assert len(found.ends_s) == 2


def test_charging_the_controller_makes_a_run_slower() -> None:
    free = simulate(PLAIN)
    charged = simulate(replace(PLAIN, call_cost=CallCost(latency_s=0.01, busy_s=0.1)))
    assert free.controller_s == 0
    assert charged.controller_s > 0.1 * charged.num_calls
    assert charged.ends_s[-1] > free.ends_s[-1] + 0.1 * charged.num_calls / 2


def test_the_staleness_rule_bounds_the_gain_below_staleness_plus_one() -> None:
    setting = replace(PLAIN, num_generators=4, update_s=5.0)
    base = Baseline(setting=setting, step_s=25.0, generation_s=20.0, slowest_s=(20.0,) * 30, decoding_s=6.0)
    # on two of four devices an update takes 10 s: two steps take at least 20 + 10 s, against 25 s a step
    assert staleness_bound(base, 1.0, 2) == pytest.approx(2 * 25 / 30)
    # and no step less than its update
    assert staleness_bound(base, 4.0, 2) == pytest.approx(25 / 10)


def test_one_slow_step_costs_more_than_its_share_of_the_mean() -> None:
    setting = replace(PLAIN, num_generators=4, update_s=5.0)
    slowest_s = tuple(200.0 if step == 15 else 20.0 for step in range(30))
    base = Baseline(setting=setting, step_s=25.0, generation_s=20.0, slowest_s=slowest_s, decoding_s=6.0)
    # Steps end after 30, 40, 60, 70, 90 s and so on; the groups of the 16th came with the end of the 14th, after 220 s,
    # so it ends after 430 s, the 17th after 440 s, the 25th after 560 s.
    assert staleness_bound(base, 1.0, 2) == pytest.approx(25 * 20 / (560 - 90))


def test_work_bounds_the_gain_of_a_split() -> None:
    setting = replace(PLAIN, num_generators=4, update_s=5.0)
    base = Baseline(setting=setting, step_s=25.0, generation_s=20.0, slowest_s=(20.0,) * 30, decoding_s=6.0)
    # decoding takes 12 s on two devices and the update 10 s; on one it would be 24 s and 6.7 s
    assert work_bound(base, 2) == pytest.approx(25 / 12)
    assert work_bound(base, 1) == pytest.approx(25 / 24)


def test_no_split_gains_more_than_its_bounds() -> None:
    setting = replace(STRAGGLERS, num_generators=4, steps=24, update_s=0.0)
    base = baseline(setting)
    said: list[str] = []
    for gain in gains(base, [1.0, 2.0], said.append):
        assert 1.0 < gain.ratio <= 1.05 * min(gain.staleness_bound, gain.work_bound)  # the edges blur it
        assert gain.max_token_staleness <= gain.max_staleness
        assert gain.ratio == max(gain.tried.values())
    assert said


def test_a_batch_at_once_waits_for_the_slowest_sibling_of_every_group() -> None:
    groups = [[1.0, 4.0], [2.0, 2.0], [3.0, 1.0], [5.0, 1.0], [1.0, 1.0]]
    # one lane on each of two devices: 4 + 3 + 1 = 8 and 2 + 5 = 7
    assert batch_at_once(groups, devices=2, lanes=1) == 8.0
    # two lanes on one device: 4, 2 | then 3 behind the 2, 5 behind the 4, 1 behind the 3: 9 and 6
    assert batch_at_once(groups, devices=1, lanes=2) == 9.0
