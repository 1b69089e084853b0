"""The section `rollout`: reuse and the bounds of the controller."""

from pathlib import Path

import pytest

from roll.config.schema import Run
from tests.config.test_load import GOOD, faults, read

REUSE = ("rollout.groups_per_step=8", "rollout.reuse=2", "rollout.max_staleness=1", "algorithm.correction=truncate")


def run(tmp_path: Path, *overrides: str) -> Run:
    return read(tmp_path, GOOD, *overrides).run


def test_reuse_needs_a_correction_a_divisor_and_enough_staleness(tmp_path: Path) -> None:
    (line,) = faults(tmp_path, GOOD, *REUSE[:3])
    assert "rollout.reuse (2): weights change between two uses" in line and "set algorithm.correction" in line
    (line,) = faults(tmp_path, GOOD, *REUSE, "rollout.groups_per_step=9")
    assert "reuse (2): does not divide groups_per_step (9)" in line
    (line,) = faults(tmp_path, GOOD, *REUSE, "rollout.max_staleness=0.5")
    assert "max_staleness is 0.5; raise that to 1, or lower reuse" in line


def test_a_quantile_leaves_some_attempts_to_stop_and_no_deterministic_run(tmp_path: Path) -> None:
    four = ("rollout.groups_per_step=2", "rollout.group_size=2")
    assert run(tmp_path, *four, "rollout.stop_quantile=0.75").rollout.stop_quantile == 0.75
    (line,) = faults(tmp_path, GOOD, *four, "rollout.stop_quantile=0.8")
    assert "stop_quantile (0.8): none of the 4 new attempts of a step is beyond it; lower it to at most 0.75" in line
    (line,) = faults(tmp_path, GOOD, *four, "rollout.stop_quantile=0.5", "deterministic=true")
    assert "with rollout.stop_quantile timing decides which attempts are stopped; leave it out" in line


@pytest.mark.parametrize(
    ("reuse", "staleness", "slots"),
    [(1, 0, 8), (1, 0.5, 12), (1, 2, 24), (2, 1, 8), (2, 1.5, 10), (2, 3, 16), (4, 3, 8)],
)
def test_slots_leave_room_for_every_use_within_the_bound(
    reuse: int, staleness: float, slots: int, tmp_path: Path
) -> None:
    rollout = run(tmp_path, *REUSE, f"rollout.reuse={reuse}", f"rollout.max_staleness={staleness}").rollout
    assert rollout.num_slots == slots


def test_a_deterministic_run_may_reuse_groups_that_the_newest_weights_sampled(tmp_path: Path) -> None:
    assert run(tmp_path, *REUSE, "deterministic=true").deterministic
    (line,) = faults(tmp_path, GOOD, *REUSE, "deterministic=true", "rollout.max_staleness=2")
    assert "deterministic needs rollout.max_staleness 1 (got 2.0)" in line


REPLAY = ("rollout.groups_per_step=8", "rollout.reuse=4", "rollout.max_staleness=2", "algorithm.correction=truncate")


@pytest.mark.parametrize(("share", "staleness", "slots"), [(0.25, 1, 8), (0.25, 2, 14), (0.625, 2, 8), (0.75, 3, 8)])
def test_a_share_of_replayed_groups_needs_only_the_room_of_as_many_new_ones(
    share: float, staleness: float, slots: int, tmp_path: Path
) -> None:
    rollout = run(tmp_path, *REPLAY, f"rollout.replay={share}", f"rollout.max_staleness={staleness}").rollout
    assert (rollout.num_slots, rollout.num_replayed) == (slots, round(8 * share))


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (["rollout.replay=0.3"], "replay (0.3): that is 2.4 of 8 groups per step; give a multiple of 1 / 8 below 1"),
        (["rollout.replay=0.9999"], "replay (0.9999): that is 7.9992 of 8 groups per step"),
        (["rollout.replay=0.5", "rollout.reuse=1"], "4 new groups per step, each used at most 1 times (reuse), do not"),
        (["rollout.replay=0.875"], "raise reuse to 8, or lower replay"),
        (["rollout.replay=0.75"], "replay (0.75): groups are used again up to 3 steps after their first use, and max_"),
        (
            ["rollout.replay=0.25", "rollout.adapt.max_staleness=[0, 2]"],
            "adapt.max_staleness ([0.0, 2.0]): replay 0.25 needs at least 1; raise the lowest value, or lower replay",
        ),
        (["rollout.replay=0.25", "algorithm.correction=null"], "weights change between two uses of a token"),
        (["rollout.replay=0.25", "deterministic=true"], "deterministic needs rollout.max_staleness 1 (got 2.0)"),
    ],
)
def test_a_share_that_the_run_cannot_replay_is_refused_in_one_line(
    overrides: list[str], text: str, tmp_path: Path
) -> None:
    (line,) = faults(tmp_path, GOOD, *REPLAY, *overrides)
    assert text in line


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (["rollout.adapt.max_staleness=[2, 1]"], "max_staleness ([2.0, 1.0]): the lowest value comes first"),
        (["rollout.adapt.redundant_groups=[3, 1]"], "redundant_groups ([3, 1]): the lowest value comes first"),
        (
            ["rollout.adapt.max_staleness=[1, 2]"],
            "rollout.max_staleness (0): the run starts outside the bounds [1.0, 2.0]",
        ),
        (["rollout.adapt.max_staleness=[0, 9]", "steps=5"], "the run has only 5 steps; lower the highest value to 5"),
        (["rollout.adapt.redundant_groups=[0, 999]"], "slots; lower the highest value to"),
        (
            ["rollout.adapt.max_staleness=[0, 2]", "deterministic=true"],
            "deterministic: rollout.adapt depends on timing",
        ),
        ([*REUSE, "rollout.adapt.max_staleness=[0, 2]"], "reuse 2 needs at least 1; raise the lowest value"),
    ],
)
def test_bounds_that_the_run_cannot_use_are_refused_in_one_line(
    overrides: list[str], text: str, tmp_path: Path
) -> None:
    (line,) = faults(tmp_path, GOOD, *overrides)
    assert text in line


def test_the_greatest_age_is_that_of_the_highest_staleness(tmp_path: Path) -> None:
    rollout = run(tmp_path, "rollout.max_staleness=1", "rollout.adapt.max_staleness=[0, 2.5]").rollout
    assert (rollout.max_age, rollout.staleness_bounds, rollout.redundancy_bounds) == (3, (0.0, 2.5), (0, 0))
