"""The benchmarks of recovery: its speed, the goodput under kills, and its price."""

from pathlib import Path

import pytest

from benchmarks.goodput import steps_per_hour
from benchmarks.recovery import LIMITS_S, SERVICES, Recoveries, kill_workers, restart_controller, result_of
from benchmarks.recovery_price import seconds_per_step
from roll.commands.chaos.outcome import ChaosPlan


def test_the_result_is_the_kind_that_takes_the_largest_fraction_of_its_limit() -> None:
    within = {kind: Recoveries(killed_s=[limit_s / 2], alone_s=0.1) for kind, limit_s in LIMITS_S.items()}
    assert result_of(within).ratio == 0.5
    result = result_of(within | {"trainer": Recoveries(killed_s=[1.0, 30.0, 45.0], alone_s=0.1)})
    assert result.ratio == 2.0, "30 s, the median, over 15 s"
    assert result.details["trainer"] == {"median_s": 30.0, "limit_s": 15.0, "alone_s": 0.1, "each_s": [1.0, 30.0, 45.0]}


@pytest.mark.slow
def test_a_supervised_controller_is_killed_and_its_restart_is_timed(tmp_path: Path) -> None:
    recoveries = restart_controller(tmp_path / "run", 1)
    assert len(recoveries.killed_s) == 1 and recoveries.median_s > 0 and recoveries.alone_s > 0


@pytest.mark.slow
def test_killed_reward_and_environment_workers_are_timed(tmp_path: Path) -> None:
    by_kind = kill_workers(tmp_path / "run", "services", 1)
    assert sorted(by_kind) == ["environment", "reward"]
    assert all(len(each.killed_s) == 1 and each.median_s > 0 and each.alone_s > 0 for each in by_kind.values())


@pytest.mark.slow
def test_the_steps_of_a_run_with_kills_are_counted(tmp_path: Path) -> None:
    plan = ChaosPlan(kinds=("reward",), every_s=3.0, num_faults=1, in_turn=True, limit_s=600)
    speed, report = steps_per_hour(tmp_path / "run", plan, SERVICES)
    assert speed >= 0 and [fault.kind for fault in report.faults] == ["reward"]


@pytest.mark.slow
def test_the_seconds_of_all_steps_but_the_first_five_are_measured(tmp_path: Path) -> None:
    seconds = seconds_per_step(tmp_path / "run", (), 8)
    assert len(seconds) == 3 and all(each > 0 for each in seconds)
