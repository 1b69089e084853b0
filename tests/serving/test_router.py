"""Requests over several generators and versions; every wait here has a timeout."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from roll.cluster.inline import InlineCluster
from roll.engines.base import Output, Request
from roll.engines.fake import FakeGenerator
from roll.errors import EngineFailed
from roll.serving.dispatch import Concurrency, LoadBalancer, Sampled, Timeouts, VersionRows
from roll.serving.router import Router
from roll.types import Finish
from tests.engines.models import request


def plain(name: str) -> str:
    """The id of a request, without the number of its dispatch."""
    return name.rpartition("~")[0]


class Watched(FakeGenerator):
    """Records submitted and aborted requests."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.submitted: list[Request] = []
        self.aborted: list[str] = []

    def num_sampled(self, name: str) -> int:
        """Tokens of a request in flight."""
        return sum(len(entry[1]) for known, entry in self._requests.items() if plain(known) == name)

    @property
    def empty(self) -> bool:
        return not self._requests

    async def submit(self, requests: Sequence[Request]) -> None:
        await super().submit(requests)
        self.submitted += [replace(request, id=plain(request.id)) for request in requests]

    async def abort(self, ids: Sequence[str] | None = None) -> None:
        await super().abort(ids)
        self.aborted += map(plain, ids or ())


class Slow(Watched):
    """Delivers outputs only once `allowed` is set, like a remote engine."""

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
async def routing(*engines: FakeGenerator, version: int | None = 0, **settings: Any) -> AsyncIterator[Router]:
    router = Router(InlineCluster(engines), **settings)
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


def test_a_reply_is_complete_with_one_version_per_token() -> None:
    async def run() -> Sampled:
        async with routing(FakeGenerator(), version=3) as router:
            return await router.sample(request("r", [1], 4, key=5))

    reply = asyncio.run(run())
    assert (reply.ids.tolist(), reply.logprobs.tolist()) == ([15, 16, 17, 18], [-1.0] * 4)
    assert (reply.versions.tolist(), reply.finish) == ([3] * 4, Finish.LENGTH)


def test_nothing_is_dispatched_before_a_version_is_served() -> None:
    async def run() -> None:
        engine = Watched()
        async with routing(engine, version=None) as router:
            asked = asyncio.create_task(router.sample(request("r", [1], 4)))
            await some_steps(20)
            assert engine.submitted == [] and not asked.done()
            await router.release(8)
            assert (await asked).versions.tolist() == [8] * 4

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


def test_sampled_tokens_no_longer_count_as_outstanding() -> None:
    async def run() -> list[list[str]]:
        engines = [Watched(), Watched()]
        async with routing(*engines) as router:
            await router.sample(request("a", [1], 9))
            await router.sample(request("b", [1], 9))
            await asyncio.gather(router.sample(request("c", [1], 9)), router.sample(request("d", [1], 5)))
        return [[asked.id for asked in engine.submitted] for engine in engines]

    assert asyncio.run(run()) == [["a", "b", "c"], ["d"]]


def test_a_held_request_continues_with_its_partial_tokens_and_keeps_their_versions() -> None:
    async def run() -> tuple[Sampled, list[Request]]:
        engine = Watched()
        async with routing(engine, version=1) as router:
            asked = asyncio.create_task(router.sample(request("r", [7, 8], 30, key=5)))
            await until(lambda: engine.num_sampled("r") > 3)
            await router.hold()
            assert engine.empty
            await router.release(2)
            return await asked, engine.submitted

    reply, (first, second) = asyncio.run(run())
    num = second.produced
    assert 0 < num < 30
    assert second.ids == (*first.ids, *reply.ids[:num]) and second.max_new_tokens == 30 - num
    assert reply.versions.tolist() == [1] * num + [2] * (30 - num)
    assert reply.ids.tolist() == [10 + (5 + at) % 10 for at in range(30)] and len(reply.logprobs) == 30


def test_hold_takes_back_queued_and_running_requests() -> None:
    async def run() -> list[Sampled]:
        engine = Watched(stragglers=frozenset({1}), delay=200)
        async with routing(engine, version=1) as router:
            asked = [asyncio.create_task(router.sample(request(f"r{key}", [1], 9, key=key))) for key in range(2)]
            await until(lambda: engine.num_sampled("r0") > 3)
            await router.hold()
            assert engine.empty
            engine.delay = 0
            late = asyncio.create_task(router.sample(request("late", [1], 9)))
            await some_steps(12)
            assert engine.empty and not late.done()
            await router.release(2)
            return [await one for one in (*asked, late)]

    ran, queued, late = asyncio.run(run())
    assert set(ran.versions) == {1, 2} and set(queued.versions) == set(late.versions) == {2}


def test_hold_waits_for_requests_being_submitted_and_takes_them_back_too() -> None:
    class Reluctant(Watched):
        """Accepts requests only once `allowed` is set."""

        def __init__(self) -> None:
            super().__init__()
            self.allowed, self.asked = asyncio.Event(), False

        async def submit(self, requests: Sequence[Request]) -> None:
            self.asked = True
            await self.allowed.wait()
            await super().submit(requests)

    async def run() -> None:
        engine = Reluctant()
        async with routing(engine) as router:
            asked = asyncio.create_task(router.sample(request("r", [1], 9)))
            await until(lambda: engine.asked)
            holding = asyncio.create_task(router.hold())
            await some_steps(20)
            assert not holding.done()
            engine.allowed.set()
            await holding
            assert engine.empty, "no generator works between two versions"
            await router.release(1)
            versions = (await asked).versions.tolist()  # the engine may have sampled before the hold
            assert len(versions) == 9 and set(versions) <= {0, 1} and versions[-1] == 1

    asyncio.run(run())


def test_hold_ends_if_the_last_request_finishes_instead() -> None:
    async def run() -> None:
        engine = Slow()
        async with routing(engine) as router:
            asked = asyncio.create_task(router.sample(request("r", [1], 1)))
            await until(lambda: engine.reporting)  # the reply is being delivered
            holding = asyncio.create_task(router.hold())
            await some_steps(10)
            engine.allowed.set()
            await holding
            assert (await asked).finish is Finish.LENGTH

    asyncio.run(run())


def test_hold_ends_if_the_last_request_is_cancelled_meanwhile() -> None:
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


def test_cancelling_a_sample_aborts_its_request_and_frees_its_slot() -> None:
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


def test_a_refused_request_fails_alone() -> None:
    async def run() -> tuple[Any, Any]:
        async with routing(FakeGenerator(max_seq_len=16)) as router:
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
            with pytest.raises(AssertionError, match="already in flight"):
                await router.sample(request("r", [1], 50))
            first.cancel()

    asyncio.run(run())


class Liar(Watched):
    """Changes its outputs by a rule."""

    def __init__(self, rule: Callable[[list[Output]], list[Output]]) -> None:
        super().__init__()
        self.rule = rule

    async def events(self, max_wait_s: float) -> list[Output]:
        return self.rule(await super().events(max_wait_s))


class Mute(Watched):
    """Accepts requests and delivers no outputs until `speaking` is set."""

    speaking = False

    async def events(self, max_wait_s: float) -> list[Output]:
        await asyncio.sleep(0.001)
        return await super().events(max_wait_s) if self.speaking else []


def test_a_duplicated_output_is_accepted_once() -> None:
    async def run() -> None:
        async with routing(Liar(lambda outputs: outputs * 2)) as router:
            replies = await asyncio.gather(*(router.sample(request(f"r{key}", [1], 4, key=key)) for key in range(5)))
            assert [one.ids[0] for one in replies] == [10, 11, 12, 13, 14] and all(len(one.ids) == 4 for one in replies)
            again = await router.sample(request("r0", [1], 4, key=3))
            assert again.ids.tolist() == [13, 14, 15, 16]
            assert (router.counts.late, router.counts.tokens, router.counts.discarded) == (6, 48, 24), (
                "duplicates are wasted"
            )

    asyncio.run(run())


def test_missing_logprobs_are_accepted_if_not_requested() -> None:
    def silent(outputs: list[Output]) -> list[Output]:
        return [replace(output, logprobs=np.full(len(output.ids), np.nan, np.float32)) for output in outputs]

    async def run() -> None:
        async with routing(Liar(silent), with_logprobs=False) as router:
            assert len((await router.sample(request("r", [1], 4))).ids) == 4

    asyncio.run(run())


@pytest.mark.parametrize(
    ("rule", "fault"),
    [
        (
            lambda output: replace(output, ids=np.ones(5, np.int32), logprobs=np.zeros(5, np.float32)),
            "5 tokens where 4",
        ),
        (lambda output: replace(output, logprobs=np.array([-1, np.nan, -1, -1], np.float32)), "not finite"),
        (lambda output: replace(output, logprobs=np.array([-1, -1, -1, -np.inf], np.float32)), "not finite"),
        (lambda output: replace(output, logprobs=output.logprobs[1:]), "4 tokens and 3 logprobs"),
    ],
)
def test_a_malformed_output_fails_its_request_alone(rule: Callable[[Output], Output], fault: str) -> None:
    def spoil(outputs: list[Output]) -> list[Output]:
        return [rule(output) if output.id.startswith("bad") else output for output in outputs]

    async def run() -> None:
        async with routing(Liar(spoil)) as router:
            asked = [router.sample(request(name, [1], 4)) for name in ("bad", "good")]
            bad, good = await asyncio.gather(*asked, return_exceptions=True)
            assert isinstance(bad, EngineFailed) and fault in str(bad) and "generator 0" in str(bad)
            assert isinstance(good, Sampled) and router.counts.bad == 1
            assert router.balancer.tokens == [0] and router.balancer.num_requests == [0]

    asyncio.run(run())


def test_rows_of_one_version_are_not_changed_by_the_next() -> None:
    versions = VersionRows()
    first, longer, second = versions.row(3, 2), versions.row(3, 4), versions.row(4, 3)
    assert [row.tolist() for row in (first, longer, second)] == [[3, 3], [3, 3, 3, 3], [4, 4, 4]]
    with pytest.raises(ValueError, match="read-only"):
        second[0] = 5


def test_a_request_without_outputs_is_redispatched_and_a_late_output_is_dropped() -> None:
    async def run() -> None:
        mute, other = Mute(), Watched()
        async with routing(mute, other, timeouts=Timeouts(request_s=0.05)) as router:
            reply = await router.sample(request("r", [1], 4, key=5))
            assert reply.ids.tolist() == [15, 16, 17, 18]
            assert [one.id for one in mute.submitted] == [one.id for one in other.submitted] == ["r"]
            assert mute.aborted == ["r"] and router.counts.redispatched == 1 and router.counts.late == 0
            mute.speaking = True
            await until(lambda: router.counts.late == 1)
            assert router.balancer.tokens == [0, 0] and router.balancer.num_requests == [0, 0]

    asyncio.run(run())


def test_a_request_without_any_output_fails_by_name() -> None:
    async def run() -> None:
        async with routing(Mute(), timeouts=Timeouts(request_s=0.02, max_redispatches=2)) as router:
            with pytest.raises(EngineFailed, match=r"request r: no output from generator 0 in 0.02 s"):
                await router.sample(request("r", [1], 4))
            assert router.counts.redispatched == 2

    asyncio.run(run())


def test_a_change_of_version_does_not_wait_for_ever_for_a_request_that_is_lost() -> None:
    async def run() -> None:
        mute, other = Mute(), Watched()
        async with routing(mute, other, timeouts=Timeouts(request_s=0.2)) as router:
            asked = asyncio.create_task(router.sample(request("r", [1], 4)))
            await until(lambda: mute.submitted)
            await router.hold()
            await router.release(1)
            assert (await asked).versions.tolist() == [1] * 4 and [one.id for one in other.submitted] == ["r"]

    asyncio.run(run())


def test_tokens_from_before_are_not_sampled_again_and_a_whole_reply_needs_no_generator() -> None:
    ids, logprobs = np.array([15, 16], np.int32), np.array([-1.0, -1.0], np.float32)
    past = Sampled(ids=ids, logprobs=logprobs, versions=np.array([3, 4], np.int32))

    async def run() -> None:
        engine = Watched()
        async with routing(engine, version=5) as router:
            found = await router.sample(request("r", [7], 4, key=5), so_far=past)
            assert found.ids.tolist() == [15, 16, 17, 18] and found.versions.tolist() == [3, 4, 5, 5]
            (asked,) = engine.submitted
            assert asked.ids == (7, 15, 16) and asked.max_new_tokens == 2 and asked.produced == 2
            whole = await router.sample(request("s", [7], 2), so_far=past)
            assert (whole.ids.tolist(), whole.finish) == ([15, 16], Finish.LENGTH) and len(engine.submitted) == 1

    asyncio.run(run())


def test_every_part_of_a_reply_is_noted_as_it_comes() -> None:
    noted: list[Output] = []

    async def run() -> Sampled:
        engine = Watched()
        async with routing(engine, version=1) as router:
            asked = asyncio.create_task(router.sample(request("r", [1], 30, key=5), on_output=noted.append))
            await until(lambda: engine.num_sampled("r") > 3)
            await router.hold()
            assert len(noted) == 1
            await router.release(2)
            return await asked

    found = asyncio.run(run())
    assert len(noted) == 2 and np.concatenate([noted[0].ids, noted[1].ids]).tolist() == found.ids.tolist()
    assert [output.version for output in noted] == [1, 2]


def test_a_callback_can_end_a_response_and_the_rest_is_aborted() -> None:
    class Reporting(Watched):
        """Reports every token at once."""

        def _extend(self, request: Request, ids: list[int]) -> None:
            super()._extend(request, ids)
            if request.id in self._requests and len(ids) == 4:
                self._outputs.append(Output.of(request.id, ids, (-1.0,) * 4, version=self.version))

    async def run() -> None:
        engine = Reporting()
        async with routing(engine) as router:
            sampled = await router.sample(request("r", [1], 900, key=5), on_output=lambda output: 3)
            assert (sampled.ids.tolist(), sampled.finish) == ([15, 16, 17], Finish.STOP)
            assert len(sampled.logprobs) == len(sampled.versions) == 3
            await until(lambda: engine.empty)
            assert engine.aborted == ["r"] and router.balancer.tokens == router.balancer.num_requests == [0]
            await until(lambda: router.counts.late)
            assert router.counts.tokens == router.counts.discarded + 3

    asyncio.run(run())


def test_siblings_go_where_their_beginning_is_warm_unless_that_costs_more() -> None:
    balance = LoadBalancer(3)

    def send(prompt: int, tokens: int, family: str) -> int:
        rank = balance.choose(prompt, family)
        assert rank is not None
        balance.add_request(rank, tokens, family)
        return rank

    assert send(100, 40, "a") == 0 and send(100, 40, "a") == 0, "40 more tokens cost less than a prefill of 100"
    assert send(100, 40, "b") == 1
    assert send(100, 40, "a") == 0, "80 against 0 and a prefill of 100"
    assert send(100, 40, "a") == 2, "120 outstanding are more than a prefill elsewhere"


def test_a_generator_holds_no_more_requests_than_it_may_and_the_oldest_go_first() -> None:
    async def run() -> list[str]:
        engine = Watched()
        async with routing(engine, concurrency=Concurrency(limit=2)) as router:
            asked = [asyncio.create_task(router.sample(request(f"r{key}", [1], 3))) for key in range(6)]
            for _ in range(40):
                assert len(engine._requests) <= 2
                await asyncio.sleep(0)
            await asyncio.gather(*asked)
        return [one.id for one in engine.submitted]

    assert asyncio.run(run()) == [f"r{key}" for key in range(6)]


def test_an_adaptive_limit_grows_with_what_ends_and_shrinks_under_pressure() -> None:
    balance = LoadBalancer(1, Concurrency(limit=10, adaptive=True))
    for _ in range(10):
        balance.add_request(0, 1, "")
        balance.remove_request(0, 1, ended=True)
    assert balance.limits[0] == pytest.approx(10.96, abs=0.01)  # ten times 1/limit
    balance.report_preemptions(0, 1)
    assert balance.limits[0] == pytest.approx(0.7 * 10.96, abs=0.01)
    balance.report_preemptions(0, 1)
    assert balance.limits[0] == pytest.approx(0.7 * 10.96, abs=0.01), "nothing new was pushed out"
    for number in range(2, 40):
        balance.report_preemptions(0, number)
    assert balance.limits[0] == 1.0


def test_pressure_reaches_the_limit_of_the_generator_that_reports_it() -> None:
    async def run() -> None:
        engines = [Watched(), Watched()]
        async with routing(*engines, concurrency=Concurrency(limit=10, adaptive=True)) as router:
            engines[1].preempted = 3
            await asyncio.gather(*(router.sample(request(f"r{key}", [1], 3)) for key in range(4)))
            left, right = router.balancer.limits
            assert left is not None and right is not None and right < 8 < 10 <= left

    asyncio.run(run())
