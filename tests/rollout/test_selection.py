"""Which groups steps take, against random orders of completion: bound, number of uses, late groups, no deadlock."""

import asyncio
import itertools
import math
import random

import pytest

from roll.rollout.selection import Priority, Slot, by_priority, choose_replayed
from tests.rollout.buffer_driver import Load, Record, complete_group, drive

LOADS = [
    Load(groups_per_step=6, reuse=reuse, staleness=reuse - 1 + spare, redundant=redundant, priority=priority, slow=slow)
    for reuse, spare, redundant, priority, slow in itertools.product(
        (1, 2, 3), (0, 0.5, 2), (0, 3), ("age", "difficulty", "value"), (0.0, 0.4)
    )
]
REPLAYS = [
    Load(
        groups_per_step=8,
        reuse=uses,
        replayed=replayed,
        staleness=math.ceil(replayed / (8 - replayed)) + spare,
        redundant=redundant,
        priority=priority,
        slow=0.4,
    )
    for (uses, replayed), spare, redundant, priority in itertools.product(
        ((2, 2), (5, 2), (3, 5), (4, 6), (8, 6)), (0, 0.5, 2), (0, 3), ("age", "difficulty", "value")
    )
]


def check(record: Record, load: Load, max_age: int, redundant: int) -> None:
    """The invariants of every run."""
    for ticket, steps in record.steps.items():
        assert ticket not in record.dropped, "a dropped group is never trained on"
        assert len(set(steps)) == len(steps)
        if load.replayed is None:
            assert steps == list(range(steps[0], steps[0] + len(steps))), "uses follow each other"
        assert len(steps) <= load.reuse
        assert record.births[ticket] < steps[0] and steps[-1] - 1 - record.births[ticket] <= max_age
    assert max(record.late) <= redundant
    new = [sum(steps[0] == step for steps in record.steps.values()) for step in range(1, load.steps + 1)]
    assert new == [load.groups_per_step] + [load.groups_per_step - load.num_replayed] * (load.steps - 1)


@pytest.mark.parametrize("load", [*LOADS, *REPLAYS], ids=str)
def test_every_choice_keeps_the_deadline_of_every_group(load: Load) -> None:
    for seed in range(2):
        record = asyncio.run(drive(load, seed))
        check(record, load, math.ceil(load.staleness), load.redundant)


def test_with_room_to_spare_all_uses_are_made() -> None:
    load = Load(groups_per_step=6, reuse=3, staleness=4, failing=0.0)
    record = asyncio.run(drive(load, 0))
    last = [steps for steps in record.steps.values() if 3 <= steps[0] <= load.steps - 2]
    assert last and all(len(steps) == 3 for steps in last)


def slots_of(*rewards: tuple[float, ...], born: int = 0) -> list[Slot]:
    """Complete groups with these rewards."""
    chance = random.Random(0)
    slots: list[Slot] = []
    for ticket, values in enumerate(rewards):
        group = complete_group(ticket, born, chance)
        trajectories = tuple(
            attempt.with_score(type(attempt.score)(value))  # type: ignore[misc]
            for attempt, value in zip(group.trajectories, values, strict=True)
        )
        slots.append(Slot(ticket, born, type(group)(id=ticket, birth=born, trajectories=trajectories)))
    return slots


@pytest.mark.parametrize(("priority", "expected"), [("age", [0, 1]), ("difficulty", [2, 3]), ("value", [3, 1])])
def test_the_priority_decides_between_complete_groups(priority: Priority, expected: list[int]) -> None:
    slots = slots_of((1, 1, 1, 1), (0, 0, 0, 1), (0.5, 0.5, 0.5, 0.5), (0, 0, 1, 1), (1, 1, 1, 1))
    selection = by_priority(slots, 2, dict.fromkeys(range(5), 9), per_step=2, redundant=0, priority=priority)
    assert selection is not None and [slot.ticket for slot in selection.taken] == expected


def test_a_group_at_its_deadline_goes_before_any_priority() -> None:
    slots = slots_of((1, 1, 1, 1), (0, 0, 1, 1), (0, 0, 1, 1))
    selection = by_priority(slots, 1, {0: 0, 1: 1, 2: 2}, per_step=1, redundant=0, priority="value")
    assert selection is not None and [slot.ticket for slot in selection.taken] == [0]
    slots[0].group = None
    assert by_priority(slots, 1, {0: 0, 1: 1, 2: 2}, per_step=1, redundant=0, priority="value") is None
    selection = by_priority(slots, 1, {0: 0, 1: 1, 2: 2}, per_step=1, redundant=1, priority="value")
    assert selection is not None and [slot.ticket for slot in selection.late] == [0], "one may be lost"


def test_groups_of_the_step_before_are_replayed_first_and_of_them_the_least_used_ones() -> None:
    slots = slots_of((1, 1, 1, 1), (0, 0, 0, 0), (1, 0, 1, 0), (1, 1, 1, 1), (1, 0, 1, 0))
    for slot, uses, born, last in zip(slots, (2, 1, 1, 1, 1), (0, 0, 1, 1, 1), (3, 3, 3, 3, 2), strict=True):
        slot.uses, slot.born, slot.last = uses, born, last
    assert [slot.ticket for slot in choose_replayed(slots, 4, "age")] == [2, 3, 1, 0]
    assert [slot.ticket for slot in choose_replayed(slots, 3, "value")] == [2, 4, 3], "mixed rewards come first"
