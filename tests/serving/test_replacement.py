"""A generator that dies is replaced: its requests go on with their tokens, and nobody serves what is old."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from roll.cluster.inline import InlineCluster
from roll.engines.base import Generator, Output, Request, Trainer
from roll.engines.fake import FakeGenerator, FakeTrainer
from roll.errors import RunStopped, WorkerDied
from roll.journal.events import Published, Replaced
from roll.journal.store import Journal
from roll.serving.publisher import Publisher, Spare
from roll.serving.router import Router
from roll.types import Digest
from roll.weights.plan import Plan
from tests.engines.models import request


class Telling(FakeGenerator):
    """Tells of every token as it comes, and remembers what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.submitted: list[Request] = []
        self.asked: list[str] = []
        self.slow = asyncio.Event()
        self.slow.set()

    async def submit(self, requests: Sequence[Request]) -> None:
        await super().submit(requests)
        self.submitted += requests
        self.asked.append("submit")

    async def receive(self, plan: Plan, version: int) -> Digest:
        self.asked.append(f"receive {version}")
        return await super().receive(plan, version)

    async def resume(self, version: int) -> None:
        self.asked.append(f"resume {version}")
        await super().resume(version)

    async def events(self, max_wait_s: float) -> list[Output]:
        await self.slow.wait()
        found = await super().events(max_wait_s)
        for name, (asked, ids, patience) in list(self._requests.items()):
            if ids:
                found.append(Output.of(name, ids, (-1.0,) * len(ids), version=self.version))
                left = Request(
                    id=name,
                    ids=(*asked.ids, *ids),
                    max_new_tokens=asked.max_new_tokens - len(ids),
                    sampling=asked.sampling,
                    stop=asked.stop,
                    key=asked.key,
                    produced=asked.produced + len(ids),
                )
                self._requests[name] = (left, [], patience)
        return found


class Mortal(InlineCluster[Generator]):
    """Generators that can be killed, at once or in the middle of the next call of a method, and replaced."""

    def __init__(self, size: int) -> None:
        self.engines = [Telling() for _ in range(size)]
        super().__init__(self.engines)
        self.dead: set[int] = set()
        self.dying: dict[int, str] = {}
        self.replaced: list[int] = []
        self.may_start = asyncio.Event()
        self.may_start.set()
        self.failing = 0

    async def at(self, rank: int, method: Any, *args: Any, **kwargs: Any) -> Any:
        if self.dying.get(rank) == method.__name__:
            self.dead.add(rank)
            del self.dying[rank]
        if rank in self.dead:
            raise WorkerDied(f"generator {rank}: ended during {method.__name__}; see its log")
        waiting = asyncio.ensure_future(super().at(rank, method, *args, **kwargs))
        while not waiting.done():
            await asyncio.sleep(0)
            if rank in self.dead:
                waiting.cancel()
                raise WorkerDied(f"generator {rank}: ended during {method.__name__}; see its log")
        return waiting.result()

    async def replace(self, rank: int) -> None:
        await self.may_start.wait()
        self.replaced.append(rank)
        if self.failing:
            self.failing -= 1
            raise WorkerDied(f"generator {rank}: cannot start")
        self.engines[rank] = Telling()
        self._workers = tuple(self.engines)
        self.dead.discard(rank)


class Scene:
    """Generators behind a router and a publisher that has published version 0."""

    def __init__(self, path: Path, size: int, *, most: int, together: bool) -> None:
        self.cluster, self.trainer = Mortal(size), FakeTrainer()
        self.router = Router(self.cluster, max_wait_s=0.05)
        self.journal = Journal(path / "journal.db")
        self.told: list[str] = []
        self.publisher = Publisher(
            trainers=InlineCluster[Trainer]([self.trainer]),
            generators=self.cluster,
            router=self.router,
            journal=self.journal,
            plan=Plan(names=(), together=together),
            spare=Spare(replace=self.cluster.replace, most=most, notice=self.told.append),
        )
        self.router.mend = self.publisher.mend

    def events(self, kind: Any) -> list[Any]:
        self.journal.flush()
        return [entry.event for entry in self.journal.events(kind)]


@asynccontextmanager
async def scene(path: Path, size: int = 2, *, most: int = 3, together: bool = False) -> AsyncIterator[Scene]:
    made = Scene(path, size, most=most, together=together)
    with closing(made.journal):
        await made.publisher.publish(0)
        running = asyncio.create_task(made.router.run())
        try:
            async with asyncio.timeout(10):
                yield made
        finally:
            running.cancel()
            await asyncio.wait([running])
        if not running.cancelled() and (error := running.exception()):
            raise error


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0)


def test_what_a_dead_generator_had_goes_on_elsewhere_with_its_tokens(tmp_path: Path) -> None:
    async def run() -> None:
        async with scene(tmp_path) as found:
            cluster = found.cluster
            cluster.may_start.clear()
            asked = [asyncio.create_task(found.router.sample(request(str(at), [5, 6], 400))) for at in range(4)]
            await until(lambda: all(engine.submitted for engine in cluster.engines))
            await until(lambda: found.router.tally.tokens > 40)
            dead = cluster.engines[0].submitted
            cluster.dead.add(0)
            await until(lambda: len(cluster.engines[1].submitted) == 4)
            moved = cluster.engines[1].submitted[2:]
            assert {one.id.partition("~")[0] for one in moved} == {one.id.partition("~")[0] for one in dead}
            assert all(one.produced > 0 and len(one.ids) == 2 + one.produced for one in moved), "with their tokens"
            replies = await asyncio.gather(*asked)
            for one, reply in zip((request(str(at), [5, 6], 400) for at in range(4)), replies, strict=True):
                assert reply.ids.tolist() == [10 + (one.key + at) % 10 for at in range(400)], "as if nobody had died"
            assert found.router.tally.redispatched == 2

    asyncio.run(run())


def test_the_new_one_holds_the_version_before_it_serves_and_is_told_of(tmp_path: Path) -> None:
    async def run() -> None:
        async with scene(tmp_path, 1) as found:
            await found.publisher.publish(1)
            found.cluster.dead.add(0)
            reply = await found.router.sample(request("one", [5], 3))
            assert reply.versions.tolist() == [1] * 3
            assert found.cluster.engines[0].asked == ["receive 1", "resume 1", "submit"]
            (event,) = found.events(Replaced)
            assert (event.generator, event.version) == (0, 1) and "ended during events" in event.why
            assert len(found.told) == 1 and found.told[0].startswith("generator 0 is being replaced")

    asyncio.run(run())


def test_a_version_that_changes_while_the_new_one_starts_is_the_one_it_gets(tmp_path: Path) -> None:
    async def run() -> None:
        async with scene(tmp_path) as found:
            found.cluster.may_start.clear()
            found.cluster.dead.add(1)
            await until(lambda: found.told)
            await found.publisher.publish(1)  # is not held up by it
            await found.publisher.publish(2)
            found.cluster.may_start.set()
            await until(lambda: found.events(Replaced))
            assert found.cluster.engines[1].asked == ["receive 2", "resume 2"]
            await found.publisher.publish(3)
            assert [engine.received[-1] for engine in found.cluster.engines] == [3, 3]

    asyncio.run(run())


def test_where_all_must_be_there_the_weights_are_published_once_more_and_no_version_goes_out_before(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        async with scene(tmp_path, together=True) as found:
            found.cluster.may_start.clear()
            asked = asyncio.create_task(found.router.sample(request("long", [5, 6], 400)))
            await until(lambda: found.router.tally.tokens > 10)
            found.cluster.dead.add(1)
            await until(lambda: found.told)
            publishing = asyncio.create_task(found.publisher.publish(1))
            await asyncio.sleep(0.02)
            assert not publishing.done() and len(found.events(Published)) == 1
            found.cluster.may_start.set()
            await publishing
            assert [(event.version, event.step) for event in found.events(Published)] == [(0, 0), (2, 0), (3, 1)]
            assert found.cluster.engines[1].received == [2, 3] and found.cluster.engines[0].received == [0, 2, 3]
            assert len((await asked).ids) == 400 and found.events(Replaced)[0].version == 2

    asyncio.run(run())


@pytest.mark.parametrize("method", ["pause", "abort", "receive", "resume"])
def test_one_that_dies_in_the_middle_of_a_publication_holds_it_up_for_nobody(method: str, tmp_path: Path) -> None:
    async def run() -> None:
        async with scene(tmp_path) as found:
            asked = [asyncio.create_task(found.router.sample(request(str(at), [5, 6], 300))) for at in range(4)]
            await until(lambda: found.router.tally.tokens > 40)
            found.cluster.dying[0] = method
            await found.publisher.publish(1)
            replies = await asyncio.gather(*asked)
            assert all(len(reply.ids) == 300 and set(reply.versions) <= {0, 1} for reply in replies)
            await until(lambda: found.events(Replaced))
            assert found.events(Replaced)[0].version == 1 and len(found.events(Published)) == 2
            assert found.cluster.engines[0].asked[:2] == ["receive 1", "resume 1"]

    asyncio.run(run())


def test_a_new_one_that_cannot_start_counts_and_past_the_budget_the_run_stops(tmp_path: Path) -> None:
    async def run() -> None:
        async with scene(tmp_path, most=2) as found:
            found.cluster.failing = 5
            found.cluster.dead.add(0)
            await until(lambda: len(found.cluster.replaced) == 2)
            await asyncio.sleep(0.05)

    with pytest.raises(BaseExceptionGroup) as raised:
        asyncio.run(run())
    (error,) = raised.value.exceptions
    assert isinstance(error, RunStopped)
    assert str(error) == ("generator 0: cannot start (2 generators were replaced before, see ray.max_replaced)")


def test_where_nobody_can_be_replaced_a_death_ends_the_run(tmp_path: Path) -> None:
    async def run() -> None:
        async with scene(tmp_path) as found:
            found.router.mend = None
            found.cluster.dead.add(0)
            await asyncio.sleep(0.05)

    with pytest.raises(BaseExceptionGroup) as raised:
        asyncio.run(run())
    assert isinstance(raised.value.exceptions[0], WorkerDied)
