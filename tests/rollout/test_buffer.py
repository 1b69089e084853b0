"""Slots, order and who waits for whom."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from roll.rollout.buffer import Buffer, StepGroups
from roll.serving.policies import ServedVersion
from roll.types import Group

T = TypeVar("T")


def group(ticket: int) -> Group:
    return Group(id=ticket, birth=0, trajectories=())


def zero() -> ServedVersion:
    """What is served."""
    return ServedVersion(0, 0)


def bounded(run: Coroutine[Any, Any, T]) -> T:
    """The result; an endless wait is a failure."""

    async def within() -> T:
        async with asyncio.timeout(5):
            return await run

    return asyncio.run(within())


def ids(step: StepGroups) -> tuple[list[int], list[int]]:
    """The groups of a step, and those that are late."""
    return [each.id for each in step.groups], list(step.late)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_groups_leave_in_the_order_they_were_admitted() -> None:
    async def run() -> list[int]:
        buffer = Buffer(num_slots=4)
        tickets = [(await buffer.admit(zero))[0] for _ in range(4)]
        taking = asyncio.create_task(buffer.take(2, 0))
        for ticket in (3, 1, 2):
            await buffer.put(group(tickets[ticket]))
        await settle()
        assert not taking.done(), "the oldest is not there yet"
        await buffer.put(group(tickets[0]))
        return [found.id for found in [*(await taking).groups, *(await buffer.take(2, 0)).groups]]

    assert bounded(run()) == [0, 1, 2, 3]


def test_a_slot_frees_at_release_and_not_when_its_group_is_taken() -> None:
    async def run() -> None:
        buffer = Buffer(num_slots=2)
        for _ in range(2):
            await buffer.put(group((await buffer.admit(zero))[0]))
        waiting = asyncio.create_task(buffer.admit(zero))
        await buffer.take(2, 0)
        await settle()
        assert not waiting.done()
        await buffer.release(2)
        assert (await waiting)[0] == 2

    bounded(run())


def test_a_dropped_group_makes_room_at_the_tail_and_take_does_not_wait_for_it() -> None:
    async def run() -> list[int]:
        buffer = Buffer(num_slots=2)
        first, second = (await buffer.admit(zero))[0], (await buffer.admit(zero))[0]
        await buffer.put(group(second))
        waiting = asyncio.create_task(buffer.admit(zero))
        await settle()
        assert not waiting.done()
        await buffer.drop(first)
        third, _ = await waiting
        await buffer.put(group(third))
        return [found.id for found in (await buffer.take(2, 0)).groups]

    assert bounded(run()) == [1, 2]


def test_a_group_that_was_not_admitted_is_a_bug() -> None:
    async def run() -> None:
        buffer = Buffer(num_slots=2)
        with pytest.raises(AssertionError, match="not admitted"):
            await buffer.put(group(0))
        ticket = (await buffer.admit(zero))[0]
        await buffer.put(group(ticket))
        with pytest.raises(AssertionError, match="put twice"):
            await buffer.put(group(ticket))

    bounded(run())


def test_with_redundancy_the_first_complete_groups_are_taken_and_the_rest_are_late() -> None:
    async def run() -> None:
        buffer = Buffer(num_slots=2, redundant=1, max_age=0)
        for _ in range(3):
            await buffer.admit(zero)
        waiting = asyncio.create_task(buffer.admit(zero))
        taking = asyncio.create_task(buffer.take(2, 0))
        await buffer.put(group(2))
        await settle()
        assert not taking.done()
        await buffer.put(group(1))
        taken = await taking
        assert ids(taken) == ([1, 2], [0])
        await settle()
        assert not waiting.done(), "a slot of a late group too is free only when newer weights are served"
        await buffer.release(3)
        assert (await waiting)[0] == 3

    bounded(run())


def test_a_group_before_its_deadline_is_carried_over_and_older_ones_go_first() -> None:
    async def run() -> None:
        buffer = Buffer(num_slots=4, redundant=1, max_age=1)
        for _ in range(5):
            await buffer.admit(zero)
        for ticket in (4, 3):
            await buffer.put(group(ticket))
        taken = await buffer.take(2, 0)
        assert ids(taken) == ([3, 4], []), "in order of birth and ticket, none too old yet"
        await buffer.release(2)
        for _ in range(2):
            await buffer.admit(lambda: ServedVersion(1, 1))
        for ticket in (5, 6):
            await buffer.put(group(ticket))
        taking = asyncio.create_task(buffer.take(2, 1))
        await settle()
        assert not taking.done(), "three would be late now, and only one may be"
        await buffer.put(group(1))
        await settle()
        assert not taking.done()
        await buffer.put(group(2))
        taken = await taking
        assert ids(taken) == ([1, 2], [0])

    bounded(run())


def test_groups_of_an_earlier_process_keep_their_slots_and_order() -> None:
    async def run() -> None:
        buffer = Buffer(num_slots=3, first_ticket=9)
        buffer.restore(4, 0)
        buffer.restore(7, 1)
        ticket, _ = await buffer.admit(zero)
        assert ticket == 9 and buffer.num_free == 0
        for number in (9, 7):
            await buffer.put(group(number))
        taking = asyncio.create_task(buffer.take(2, 1))
        await settle()
        assert not taking.done()
        await buffer.put(group(4))
        assert [found.id for found in (await taking).groups] == [4, 7] and [found.id for found in buffer.ready()] == [9]

    bounded(run())


def test_with_redundancy_a_step_waits_for_an_old_group_before_too_many_share_a_deadline() -> None:
    """At staleness 2, faster groups must not overtake so many slow ones that their deadline cannot be kept."""

    async def run() -> list[tuple[list[int], list[int]]]:
        buffer = Buffer(num_slots=3, redundant=1, max_age=2)
        for _ in range(4):
            await buffer.admit(zero)
        await buffer.put(group(0))
        steps = [ids(await buffer.take(1, 0))]
        await buffer.release(1)
        await buffer.admit(lambda: ServedVersion(1, 1))
        await buffer.put(group(4))
        taking = asyncio.create_task(buffer.take(1, 1))
        await settle()
        assert not taking.done(), "one of three with one step left must go now"
        for ticket in (1, 2, 3):
            await buffer.put(group(ticket))
        steps.append(ids(await taking))
        await buffer.release(1)
        return [*steps, ids(await buffer.take(1, 2))]

    assert bounded(run()) == [([0], []), ([1], []), ([2], [3])]
