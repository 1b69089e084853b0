"""Reminders during long waits."""

import asyncio

import pytest

from roll.pipelines.reminders import await_with_reminders


async def _after(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "here"


def test_a_long_wait_is_reported_until_it_is_over() -> None:
    reminders: list[float] = []

    async def _after_two_reminders() -> str:
        while len(reminders) < 2:
            await asyncio.sleep(0.01)
        return "here"

    assert asyncio.run(await_with_reminders(_after_two_reminders(), reminders.append, every_s=0.1)) == "here"
    assert len(reminders) >= 2 and 0.1 <= reminders[0] < reminders[1]


def test_a_short_wait_is_not_reported() -> None:
    reminders: list[float] = []
    assert asyncio.run(await_with_reminders(_after(0.0), reminders.append, every_s=10.0)) == "here" and not reminders


def test_an_error_of_the_wait_is_raised() -> None:
    async def _failing() -> None:
        raise ValueError("the reason")

    with pytest.raises(ValueError, match="the reason"):
        asyncio.run(await_with_reminders(_failing(), lambda _: None))


def test_cancelling_cancels_the_wait() -> None:
    ended: list[str] = []

    async def _waiting() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("ended")

    async def _cancelled() -> None:
        task = asyncio.create_task(await_with_reminders(_waiting(), lambda _: None))
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])
        await asyncio.sleep(0)

    asyncio.run(_cancelled())
    assert ended == ["ended"]


def test_nothing_runs_between_the_end_of_a_wait_and_its_caller() -> None:
    order: list[str] = []

    async def race() -> None:
        event = asyncio.Event()

        async def waits() -> None:
            await event.wait()
            order.append("over")

        async def continues() -> None:
            await await_with_reminders(waits(), lambda _: None)
            order.append("follows")

        async def another() -> None:
            await event.wait()
            order.append("another")

        async with asyncio.TaskGroup() as group:
            group.create_task(continues())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            group.create_task(another())
            await asyncio.sleep(0)
            event.set()

    asyncio.run(race())
    assert order == ["over", "follows", "another"]
