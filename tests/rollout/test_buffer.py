"""Slots, order and who waits for whom."""

import asyncio

import pytest

from roll.rollout.buffer import Buffer
from roll.types import Group


def group(ticket: int) -> Group:
    return Group(id=ticket, birth=0, trajectories=())


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_groups_leave_in_the_order_they_were_admitted() -> None:
    async def run() -> list[int]:
        buffer = Buffer(num_slots=4)
        tickets = [await buffer.admit() for _ in range(4)]
        taking = asyncio.create_task(buffer.take(2))
        for ticket in (3, 1, 2):
            await buffer.put(group(tickets[ticket]))
        await settle()
        assert not taking.done(), "the oldest is not there yet"
        await buffer.put(group(tickets[0]))
        return [found.id for found in [*await taking, *await buffer.take(2)]]

    assert asyncio.run(run()) == [0, 1, 2, 3]


def test_a_slot_frees_at_release_and_not_when_its_group_is_taken() -> None:
    async def run() -> None:
        buffer = Buffer(num_slots=2)
        for _ in range(2):
            await buffer.put(group(await buffer.admit()))
        waiting = asyncio.create_task(buffer.admit())
        await buffer.take(2)
        await settle()
        assert not waiting.done()
        await buffer.release(2)
        assert await waiting == 2

    asyncio.run(run())


def test_a_dropped_group_makes_room_at_the_tail_and_is_not_waited_for() -> None:
    async def run() -> list[int]:
        buffer = Buffer(num_slots=2)
        first, second = await buffer.admit(), await buffer.admit()
        await buffer.put(group(second))
        waiting = asyncio.create_task(buffer.admit())
        await settle()
        assert not waiting.done()
        await buffer.drop(first)
        third = await waiting
        await buffer.put(group(third))
        return [found.id for found in await buffer.take(2)]

    assert asyncio.run(run()) == [1, 2]


def test_a_group_nobody_admitted_is_a_bug() -> None:
    async def run() -> None:
        buffer = Buffer(num_slots=2)
        with pytest.raises(AssertionError, match="not admitted"):
            await buffer.put(group(0))
        ticket = await buffer.admit()
        await buffer.put(group(ticket))
        with pytest.raises(AssertionError, match="put twice"):
            await buffer.put(group(ticket))

    asyncio.run(run())
