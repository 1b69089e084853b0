"""Requests over several generators and several versions; every wait here is bounded."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from roll.cluster.inline import InlineCluster
from roll.engines.base import Request
from roll.engines.fake import FakeGenerator
from roll.errors import EngineFailed
from roll.rollout.router import Router, Sampled
from roll.types import Finish
from tests.engines.models import request


class Watched(FakeGenerator):
    """Remembers what it was given and what was taken from it."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.submitted: list[Request] = []
        self.aborted: list[str] = []

    def num_sampled(self, name: str) -> int:
        """Tokens of a request under way."""
        return len(self._requests[name][1]) if name in self._requests else 0

    @property
    def empty(self) -> bool:
        return not self._requests

    async def submit(self, requests: Sequence[Request]) -> None:
        await super().submit(requests)
        self.submitted += requests

    async def abort(self, ids: Sequence[str] | None = None) -> None:
        await super().abort(ids)
        self.aborted += ids or ()


class Slow(Watched):
    """Reports an end only when it is allowed to, as a distant engine might."""

    def __init__(self) -> None:
        super().__init__()
        self.allowed, self.reporting = asyncio.Event(), False

    async def events(self, max_wait_s: float) -> Any:
        outputs = await super().events(max_wait_s)
        if outputs:
            self.reporting = True
            await self.allowed.wait()
        return outputs


@asynccontextmanager
async def routing(*engines: FakeGenerator, version: int | None = 0) -> AsyncIterator[Router]:
    router = Router(InlineCluster(engines))
    running = asyncio.create_task(router.run())
    if version is not None:
        await router.release(version)
    async with asyncio.timeout(5):
        yield router
    assert not running.done(), running.exception()
    running.cancel()


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0)


async def some_steps(number: int = 5) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


def test_a_reply_comes_back_whole_with_a_version_for_each_token() -> None:
    async def run() -> Sampled:
        async with routing(FakeGenerator(), version=3) as router:
            return await router.sample(request("r", [1], 4, key=5))

    found = asyncio.run(run())
    assert found == Sampled(ids=(15, 16, 17, 18), logprobs=(-1.0,) * 4, versions=(3,) * 4, finish=Finish.LENGTH)


def test_nothing_goes_out_before_a_version_is_served() -> None:
    async def run() -> None:
        engine = Watched()
        async with routing(engine, version=None) as router:
            asked = asyncio.create_task(router.sample(request("r", [1], 4)))
            await some_steps(20)
            assert engine.submitted == [] and not asked.done()
            await router.release(8)
            assert (await asked).versions == (8,) * 4

    asyncio.run(run())


def test_a_request_goes_where_fewest_tokens_are_outstanding() -> None:
    async def run() -> list[list[str]]:
        engines = [Watched() for _ in range(3)]
        async with routing(*engines) as router:
            budgets = {"a": 50, "b": 20, "c": 30, "d": 25, "e": 10, "f": 1}
            await asyncio.gather(*(router.sample(request(name, [1], new)) for name, new in budgets.items()))
        return [[asked.id for asked in engine.submitted] for engine in engines]

    # 50 | 20 | 30, d to the one with 20 (45), e to the one with 30 (40), f there again (41).
    assert asyncio.run(run()) == [["a"], ["b", "d"], ["c", "e", "f"]]


def test_tokens_that_have_come_no_longer_count_as_outstanding() -> None:
    async def run() -> list[list[str]]:
        engines = [Watched(), Watched()]
        async with routing(*engines) as router:
            await router.sample(request("a", [1], 9))
            await router.sample(request("b", [1], 9))
            await asyncio.gather(router.sample(request("c", [1], 9)), router.sample(request("d", [1], 5)))
        return [[asked.id for asked in engine.submitted] for engine in engines]

    assert asyncio.run(run()) == [["a", "b", "c"], ["d"]]


def test_a_held_request_goes_on_with_its_partial_tokens_and_keeps_their_versions() -> None:
    async def run() -> tuple[Sampled, list[Request]]:
        engine = Watched()
        async with routing(engine, version=1) as router:
            asked = asyncio.create_task(router.sample(request("r", [7, 8], 30, key=5)))
            await until(lambda: engine.num_sampled("r") > 3)
            await router.hold()
            assert engine.empty
            await router.release(2)
            return await asked, engine.submitted

    found, (first, second) = asyncio.run(run())
    num = second.produced
    assert 0 < num < 30
    assert second.ids == (*first.ids, *found.ids[:num]) and second.max_new_tokens == 30 - num
    assert found.versions == (1,) * num + (2,) * (30 - num)
    assert found.ids == tuple(10 + (5 + at) % 10 for at in range(30)) and len(found.logprobs) == 30


def test_hold_takes_back_what_queues_as_well_as_what_runs() -> None:
    async def run() -> list[Sampled]:
        engine = Watched(stragglers=frozenset({1}), patience=200)
        async with routing(engine, version=1) as router:
            asked = [asyncio.create_task(router.sample(request(f"r{key}", [1], 9, key=key))) for key in range(2)]
            await until(lambda: engine.num_sampled("r0") > 3)
            await router.hold()
            assert engine.empty
            engine.patience = 0
            late = asyncio.create_task(router.sample(request("late", [1], 9)))
            await some_steps(12)
            assert engine.empty and not late.done()
            await router.release(2)
            return [await one for one in (*asked, late)]

    ran, queued, late = asyncio.run(run())
    assert set(ran.versions) == {1, 2} and set(queued.versions) == set(late.versions) == {2}


def test_hold_ends_although_the_last_request_finished_instead_of_being_taken_back() -> None:
    async def run() -> None:
        engine = Slow()
        async with routing(engine) as router:
            asked = asyncio.create_task(router.sample(request("r", [1], 1)))
            await until(lambda: engine.reporting)  # the reply is on its way
            holding = asyncio.create_task(router.hold())
            await some_steps(10)
            engine.allowed.set()
            await holding
            assert (await asked).finish is Finish.LENGTH

    asyncio.run(run())


def test_hold_ends_although_the_last_request_was_cancelled_meanwhile() -> None:
    async def run() -> None:
        engine = Slow()
        async with routing(engine) as router:
            asked = asyncio.create_task(router.sample(request("r", [1], 900)))
            await until(lambda: engine.num_sampled("r") > 3)
            holding = asyncio.create_task(router.hold())
            await until(lambda: engine.reporting)
            asked.cancel()
            await some_steps()
            engine.allowed.set()
            await holding

    asyncio.run(run())


def test_cancelling_a_sample_aborts_its_request_and_frees_its_place() -> None:
    async def run() -> None:
        engines = [Watched(), Watched()]
        async with routing(*engines) as router:
            asked = asyncio.create_task(router.sample(request("r", [1], 500)))
            await until(lambda: engines[0].num_sampled("r") > 3)
            asked.cancel()
            await until(lambda: engines[0].empty)
            assert engines[0].aborted == ["r"]
            assert (await router.sample(request("s", [1], 5))).finish is Finish.LENGTH
            assert [asked.id for asked in engines[0].submitted] == ["r", "s"]

    asyncio.run(run())


def test_a_refusal_reaches_the_one_who_asked_and_nobody_else() -> None:
    async def run() -> tuple[Any, Any]:
        async with routing(FakeGenerator(context=16)) as router:
            asked = [router.sample(request("long", [1] * 20, 5)), router.sample(request("good", [1], 5))]
            refused, good = await asyncio.gather(*asked, return_exceptions=True)
            assert (await router.sample(request("next", [1], 5))).finish is Finish.LENGTH
            return refused, good

    refused, good = asyncio.run(run())
    assert isinstance(refused, EngineFailed) and "long" in str(refused)
    assert isinstance(good, Sampled) and len(good.ids) == 5


def test_the_same_request_twice_at_once_is_a_bug() -> None:
    async def run() -> None:
        async with routing(FakeGenerator()) as router:
            first = asyncio.create_task(router.sample(request("r", [1], 50)))
            await some_steps(2)
            with pytest.raises(AssertionError, match="under way already"):
                await router.sample(request("r", [1], 50))
            first.cancel()

    asyncio.run(run())
