"""A wait that lasts is told of, again and again, until it is over."""

import asyncio

import pytest

from roll.pipelines.reminders import told


async def _after(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "here"


def test_a_wait_that_lasts_is_told_of_until_it_is_over() -> None:
    heard: list[float] = []
    assert asyncio.run(told(_after(0.25), heard.append, every_s=0.1)) == "here"
    assert len(heard) == 2 and 0.1 <= heard[0] < heard[1]


def test_a_short_wait_is_not_told_of() -> None:
    heard: list[float] = []
    assert asyncio.run(told(_after(0.0), heard.append, every_s=10.0)) == "here" and not heard


def test_what_the_wait_raises_is_raised() -> None:
    async def _failing() -> None:
        raise ValueError("the reason")

    with pytest.raises(ValueError, match="the reason"):
        asyncio.run(told(_failing(), lambda _: None))


def test_who_waits_no_longer_takes_the_wait_with_it() -> None:
    ended: list[str] = []

    async def _waiting() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("ended")

    async def _cancelled() -> None:
        task = asyncio.create_task(told(_waiting(), lambda _: None))
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])
        await asyncio.sleep(0)

    asyncio.run(_cancelled())
    assert ended == ["ended"]


def test_nothing_runs_between_the_end_of_a_wait_and_what_follows_on_it() -> None:
    order: list[str] = []

    async def race() -> None:
        event = asyncio.Event()

        async def waits() -> None:
            await event.wait()
            order.append("over")

        async def goes_on() -> None:
            await told(waits(), lambda _: None)
            order.append("follows")

        async def another() -> None:
            await event.wait()
            order.append("another")

        async with asyncio.TaskGroup() as group:
            group.create_task(goes_on())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            group.create_task(another())
            await asyncio.sleep(0)
            event.set()

    asyncio.run(race())
    assert order == ["over", "follows", "another"]
