"""The controller of the asynchronous ratio, on plants whose best ratio is known; and the buffer while it changes."""

import asyncio
import itertools
import math
import random
from collections.abc import Callable

import pytest

from roll.journal.events import AsyncRatioChanged, Event, RolledBack
from roll.rollout.adapt import AsyncRatio, RatioBounds, RatioChange, RatioController, StepWaits, last_ratio
from roll.rollout.buffer import Buffer
from roll.rollout.selection import Priority
from roll.serving.policies import ServedVersion
from tests.rollout.buffer_driver import Load, drive
from tests.rollout.test_selection import check

BOUNDS = RatioBounds(max_staleness=(0, 4), redundant_groups=(0, 8))
LOWEST = AsyncRatio(max_staleness=0, redundant_groups=0)


def controlled(
    plant: Callable[[AsyncRatio, int], StepWaits], steps: int, start: AsyncRatio = LOWEST
) -> tuple[RatioController, list[tuple[int, RatioChange]]]:
    """A controller after some steps of a plant, and its changes."""
    controller, changes = RatioController(BOUNDS, start), list[tuple[int, RatioChange]]()
    for step in range(1, steps + 1):
        if (change := controller.observe(plant(controller.ratio, step))) is not None:
            assert 0 <= change.ratio.max_staleness <= 4 and 0 <= change.ratio.redundant_groups <= 8
            changes.append((step, change))
    return controller, changes


def overlapped(needed: float, update_s: float = 10.0, wait_s: float = 8.0) -> Callable[[AsyncRatio, int], StepWaits]:
    """The trainer waits less with every step of staleness, up to the needed one."""

    def plant(ratio: AsyncRatio, step: int) -> StepWaits:
        wait = wait_s * max(0.0, 1 - ratio.max_staleness / needed)
        return StepWaits(seconds=update_s + wait, trainer_s=wait, generators_s=wait)

    return plant


def test_staleness_rises_until_the_trainer_no_longer_waits_and_stays_there() -> None:
    controller, changes = controlled(overlapped(needed=3), 150)
    assert controller.ratio.max_staleness == 3
    rises = [change.ratio.max_staleness for _, change in changes[:3]]
    assert rises == [1, 2, 3]
    lower = [step for step, change in changes if change.ratio.max_staleness < 3 and step > changes[2][0]]
    assert len(lower) <= 4, "a lower value is tried less and less often"
    assert all(change.reason.startswith("max_staleness") for _, change in changes)
    assert "the trainer waited 44 % of the last 4 steps, generators were idle 44 %" in changes[0][1].reason


def test_a_value_that_brings_nothing_is_taken_back_and_tried_less_and_less_often() -> None:
    def generation_bound(ratio: AsyncRatio, step: int) -> StepWaits:
        return StepWaits(seconds=20.0, trainer_s=10.0, generators_s=0.0)

    _, changes = controlled(generation_bound, 400)
    raised = [step for step, change in changes if change.ratio.max_staleness > 0]
    gaps = [after - before for before, after in itertools.pairwise(raised)]
    assert gaps == sorted(gaps) and gaps[-1] > 3 * gaps[0]
    backs = [change for _, change in changes if "back to 0" in change.reason]
    assert len(backs) >= 4 and "steps took 20 s with 1 and 20 s before" in backs[0].reason


def test_redundancy_falls_where_generators_are_busy_and_groups_are_lost() -> None:
    def wasteful(ratio: AsyncRatio, step: int) -> StepWaits:
        seconds = 20.0 + ratio.redundant_groups
        lost = ratio.redundant_groups
        return StepWaits(seconds=seconds, trainer_s=seconds - 10, generators_s=0.0, num_lost=lost)

    controller, _ = controlled(wasteful, 80, AsyncRatio(max_staleness=4, redundant_groups=8))
    assert controller.ratio.redundant_groups == 0


def test_redundancy_rises_where_stragglers_hold_a_step_back() -> None:
    def straggling(ratio: AsyncRatio, step: int) -> StepWaits:
        wait = 30.0 / (1 + ratio.redundant_groups)
        return StepWaits(seconds=10 + wait, trainer_s=wait, generators_s=wait)

    controller, _ = controlled(straggling, 120)
    assert controller.ratio.redundant_groups >= 6


def test_both_fall_where_the_trainer_never_waits() -> None:
    def training_bound(ratio: AsyncRatio, step: int) -> StepWaits:
        return StepWaits(seconds=10.0, trainer_s=0.1, generators_s=5.0)

    controller, changes = controlled(training_bound, 150, AsyncRatio(max_staleness=4, redundant_groups=8))
    assert controller.ratio == LOWEST and len(changes) == 4 + 4


def test_another_workload_opens_all_moves_again() -> None:
    def tripled(ratio: AsyncRatio, step: int) -> StepWaits:
        return (
            overlapped(needed=4, wait_s=20.0)(ratio, step)
            if step > 100
            else StepWaits(seconds=11.0, trainer_s=1.0, generators_s=0.0)
        )

    before, _ = controlled(tripled, 100)
    after, changes = controlled(tripled, 160)
    assert before.ratio.max_staleness <= 1 and after.ratio.max_staleness == 4
    assert min(step for step, change in changes if change.ratio.max_staleness == 2) < 125


@pytest.mark.parametrize("seed", range(3))
def test_noise_moves_the_ratio_seldom(seed: int) -> None:
    chance = random.Random(seed)

    def noisy(ratio: AsyncRatio, step: int) -> StepWaits:
        seconds = 20.0 * chance.lognormvariate(0, 0.05)
        return StepWaits(seconds=seconds, trainer_s=seconds / 2, generators_s=0.0)

    _, changes = controlled(noisy, 300)
    assert len(changes) < 30, "300 steps have 60 to 75 times of decision"


def test_a_resumed_run_has_the_ratio_of_the_step_it_continues_from() -> None:
    def changed(step: int, staleness: float) -> AsyncRatioChanged:
        return AsyncRatioChanged(step=step, max_staleness=staleness, redundant_groups=1, reason="waits")

    events: list[Event] = [changed(4, 1), changed(9, 2), RolledBack(to_step=6, reason="resumed"), changed(12, 3)]
    assert last_ratio(events, LOWEST, 3) == LOWEST
    assert last_ratio(events, LOWEST, 11) == AsyncRatio(max_staleness=1, redundant_groups=1), "step 9 was undone"
    assert last_ratio(events, LOWEST, 12).max_staleness == 3


@pytest.mark.parametrize(("reuse", "replayed"), [(1, None), (2, None), (4, 2)])
@pytest.mark.parametrize("priority", ["age", "difficulty", "value"])
@pytest.mark.parametrize("redundant", [0, 4])
def test_the_bound_of_the_greatest_ratio_holds_whatever_the_ratio_is_now(
    reuse: int, replayed: int | None, priority: Priority, redundant: int
) -> None:
    load = Load(
        groups_per_step=6,
        reuse=reuse,
        replayed=replayed,
        staleness=3,
        redundant=redundant,
        priority=priority,
        slow=0.5,
        steps=40,
    )

    def resize(buffer: Buffer, step: int, chance: random.Random) -> None:
        if step % 3 == 0:
            staleness, spare = chance.uniform(min(1, reuse - 1), 3), chance.randrange(redundant + 1)
            buffer.resize(num_slots=load.num_slots(staleness), redundant=spare)

    for seed in range(4):
        check(asyncio.run(drive(load, seed, resize)), load, math.ceil(load.staleness), redundant)


def test_fewer_slots_stop_admissions_until_groups_have_left() -> None:
    async def run() -> None:
        buffer = Buffer(num_slots=6)
        for _ in range(6):
            await buffer.admit(lambda: ServedVersion(0, 0))
        buffer.resize(num_slots=3, redundant=0)
        assert buffer.num_free == -3
        for ticket in (0, 1, 2, 3):
            await buffer.drop(ticket)
        assert buffer.num_free == 1 and buffer.num_slots == 3

    asyncio.run(run())
