"""A dead generator is replaced: its requests continue with their tokens, and no old weights are served."""

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
from roll.journal.events import GeneratorReplaced, WeightsPublished
from roll.journal.store import Journal
from roll.serving.publisher import Publisher, ReplacementPolicy
from roll.serving.router import Router
from roll.weights.channel import Transport
from roll.weights.digest import Digest
from roll.weights.meeting import is_cancelled, open_meeting
from tests.engines.models import request

RESUME = "see its log, then `roll resume` the run"


class Streaming(FakeGenerator):
    """Delivers every token at once, and records its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.submitted: list[Request] = []
        self.calls: list[str] = []
        self.slow = asyncio.Event()
        self.slow.set()

    async def submit(self, requests: Sequence[Request]) -> None:
        await super().submit(requests)
        self.submitted += requests
        self.calls.append("submit")

    async def receive(self, version: int) -> Digest:
        self.calls.append(f"receive {version}")
        return await super().receive(version)

    async def resume(self, version: int) -> None:
        self.calls.append(f"resume {version}")
        await super().resume(version)

    async def events(self, max_wait_s: float) -> list[Output]:
        await self.slow.wait()
        outputs = await super().events(max_wait_s)
        for name, (before, ids, delay) in list(self._requests.items()):
            if ids:
                outputs.append(Output.of(name, ids, (-1.0,) * len(ids), version=self.version))
                left = Request(
                    id=name,
                    ids=(*before.ids, *ids),
                    max_new_tokens=before.max_new_tokens - len(ids),
                    sampling=before.sampling,
                    stop=before.stop,
                    key=before.key,
                    produced=before.produced + len(ids),
                )
                self._requests[name] = (left, [], delay)
        return outputs


class Mortal(InlineCluster[Generator]):
    """Generators that can be killed, at once or in the middle of the next call of a method, and replaced."""

    def __init__(self, size: int) -> None:
        self.engines = [Streaming() for _ in range(size)]
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
            raise WorkerDied(f"generator {rank}: ended during {method.__name__}", RESUME)
        waiting = asyncio.ensure_future(super().at(rank, method, *args, **kwargs))
        while not waiting.done():
            await asyncio.sleep(0)
            if rank in self.dead:
                waiting.cancel()
                raise WorkerDied(f"generator {rank}: ended during {method.__name__}", RESUME)
        return waiting.result()

    async def replace(self, rank: int) -> None:
        await self.may_start.wait()
        self.replaced.append(rank)
        if self.failing:
            self.failing -= 1
            raise WorkerDied(f"generator {rank}: cannot start")
        self.engines[rank] = Streaming()
        self._workers = tuple(self.engines)
        self.dead.discard(rank)


class Broadcasting(FakeTrainer):
    """Its transfer fails if a generator is dead, as a broadcast does."""

    def __init__(self, cluster: Mortal) -> None:
        super().__init__()
        self._cluster = cluster

    async def send(self, version: int) -> Digest:
        for _ in range(20):
            await asyncio.sleep(0)
        if self._cluster.dead:
            raise RunStopped(f"weights: version {version} was not transferred (connection closed)")
        return await super().send(version)


class Scene:
    """Generators behind a router and a publisher that has published version 0."""

    def __init__(self, path: Path, size: int, *, most: int, together: bool) -> None:
        self.cluster = Mortal(size)
        self.trainer = Broadcasting(self.cluster) if together else FakeTrainer()
        self.router = Router(self.cluster, max_wait_s=0.05)
        self.journal = Journal(path / "journal.db")
        self.notices: list[str] = []
        self.publisher = Publisher(
            trainers=InlineCluster[Trainer]([self.trainer]),
            generators=self.cluster,
            router=self.router,
            journal=self.journal,
            transport=Transport(concurrent=together),
            replacement=ReplacementPolicy(
                replace=self.cluster.replace, max_replacements=most, notice=self.notices.append
            ),
        )
        self.router.replace_generator = self.publisher.replace_generator

    def events(self, kind: Any) -> list[Any]:
        self.journal.flush()
        return [entry.event for entry in self.journal.events(kind)]


@asynccontextmanager
async def open_scene(
    path: Path, size: int = 2, *, most: int = 3, together: bool = False, published: bool = True
) -> AsyncIterator[Scene]:
    opened = Scene(path, size, most=most, together=together)
    with closing(opened.journal):
        if published:
            await opened.publisher.publish(0)
        running = asyncio.create_task(opened.router.run())
        try:
            async with asyncio.timeout(10):
                yield opened
        finally:
            running.cancel()
            await asyncio.wait([running])
        if not running.cancelled() and (error := running.exception()):
            raise error


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0)


def test_requests_of_a_dead_generator_continue_on_others_with_their_tokens(tmp_path: Path) -> None:
    async def run() -> None:
        async with open_scene(tmp_path) as scene:
            cluster = scene.cluster
            cluster.may_start.clear()
            asked = [asyncio.create_task(scene.router.sample(request(str(at), [5, 6], 400))) for at in range(4)]
            await until(lambda: all(engine.submitted for engine in cluster.engines))
            await until(lambda: scene.router.counts.tokens > 40)
            dead = cluster.engines[0].submitted
            cluster.dead.add(0)
            await until(lambda: len(cluster.engines[1].submitted) == 4)
            moved = cluster.engines[1].submitted[2:]
            assert {one.id.partition("~")[0] for one in moved} == {one.id.partition("~")[0] for one in dead}
            assert all(one.produced > 0 and len(one.ids) == 2 + one.produced for one in moved), "with their tokens"
            replies = await asyncio.gather(*asked)
            for one, reply in zip((request(str(at), [5, 6], 400) for at in range(4)), replies, strict=True):
                assert reply.ids.tolist() == [10 + (one.key + at) % 10 for at in range(400)], (
                    "as if no generator had died"
                )
            assert scene.router.counts.redispatched == 2

    asyncio.run(run())


def test_a_replacement_has_the_version_before_it_serves_and_is_reported(tmp_path: Path) -> None:
    async def run() -> None:
        async with open_scene(tmp_path, 1) as scene:
            await scene.publisher.publish(1)
            scene.cluster.dead.add(0)
            reply = await scene.router.sample(request("one", [5], 3))
            assert reply.versions.tolist() == [1] * 3
            assert scene.cluster.engines[0].calls == ["receive 1", "resume 1", "submit"]
            (event,) = scene.events(GeneratorReplaced)
            assert (event.generator, event.version) == (0, 1) and "ended during events" in event.reason
            assert len(scene.notices) == 1 and scene.notices[0].startswith("generator 0 is being replaced")
            assert RESUME not in scene.notices[0] and RESUME not in event.reason, "the run goes on"

    asyncio.run(run())


def test_a_replacement_gets_the_version_published_while_it_starts(tmp_path: Path) -> None:
    async def run() -> None:
        async with open_scene(tmp_path) as scene:
            scene.cluster.may_start.clear()
            scene.cluster.dead.add(1)
            await until(lambda: scene.notices)
            await scene.publisher.publish(1)  # does not wait for it
            await scene.publisher.publish(2)
            scene.cluster.may_start.set()
            await until(lambda: scene.events(GeneratorReplaced))
            assert scene.cluster.engines[1].calls == ["receive 2", "resume 2"]
            await scene.publisher.publish(3)
            assert [engine.received[-1] for engine in scene.cluster.engines] == [3, 3]

    asyncio.run(run())


def test_a_concurrent_transport_republishes_to_all_and_publishes_nothing_before(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        async with open_scene(tmp_path, together=True) as scene:
            scene.cluster.may_start.clear()
            asked = asyncio.create_task(scene.router.sample(request("long", [5, 6], 400)))
            await until(lambda: scene.router.counts.tokens > 10)
            scene.cluster.dead.add(1)
            await until(lambda: scene.notices)
            publishing = asyncio.create_task(scene.publisher.publish(1))
            await asyncio.sleep(0.02)
            assert not publishing.done() and len(scene.events(WeightsPublished)) == 1
            scene.cluster.may_start.set()
            await publishing
            assert [(event.version, event.step) for event in scene.events(WeightsPublished)] == [(0, 0), (2, 0), (3, 1)]
            assert scene.cluster.engines[1].received == [2, 3] and scene.cluster.engines[0].received == [0, 2, 3]
            assert len((await asked).ids) == 400 and scene.events(GeneratorReplaced)[0].version == 2

    asyncio.run(run())


@pytest.mark.parametrize("method", ["pause", "abort", "receive", "resume"])
def test_a_generator_that_dies_during_a_publication_does_not_delay_it(method: str, tmp_path: Path) -> None:
    async def run() -> None:
        async with open_scene(tmp_path) as scene:
            asked = [asyncio.create_task(scene.router.sample(request(str(at), [5, 6], 300))) for at in range(4)]
            await until(lambda: scene.router.counts.tokens > 40)
            scene.cluster.dying[0] = method
            await scene.publisher.publish(1)
            replies = await asyncio.gather(*asked)
            assert all(len(reply.ids) == 300 and set(reply.versions) <= {0, 1} for reply in replies)
            await until(lambda: scene.events(GeneratorReplaced))
            assert scene.events(GeneratorReplaced)[0].version == 1 and len(scene.events(WeightsPublished)) == 2
            assert scene.cluster.engines[0].calls[:2] == ["receive 1", "resume 1"]

    asyncio.run(run())


@pytest.mark.parametrize("method", ["pause", "abort", "receive"])
def test_a_broadcast_that_loses_a_generator_is_repeated_with_its_replacement(method: str, tmp_path: Path) -> None:
    async def run() -> None:
        async with open_scene(tmp_path, 3, together=True) as scene:
            asked = [asyncio.create_task(scene.router.sample(request(str(at), [5, 6], 300))) for at in range(4)]
            await until(lambda: scene.router.counts.tokens > 40)
            scene.cluster.dying[0] = method
            await scene.publisher.publish(1)
            (_, event) = scene.events(WeightsPublished)
            assert event.step == 1 and event.version >= 2, "a gap in the versions makes a new group"
            assert all(engine.received[-1] == event.version for engine in scene.cluster.engines)
            replies = await asyncio.gather(*asked)
            assert all(len(reply.ids) == 300 and set(reply.versions) <= {0, event.version} for reply in replies)
            await scene.publisher.publish(2)
            assert all(engine.received[-1] == event.version + 1 for engine in scene.cluster.engines)

    asyncio.run(run())


@pytest.mark.parametrize("method", ["pause", "abort", "receive", "resume"])
@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("last", [-1, 409])
def test_a_generator_that_dies_during_the_first_publication_is_replaced(
    last: int, together: bool, method: str, tmp_path: Path
) -> None:
    async def run() -> None:
        async with open_scene(tmp_path, together=together, published=False) as scene:
            scene.publisher.version = last
            scene.cluster.dying[1] = method
            await scene.publisher.publish(7)
            replies = await asyncio.gather(*(scene.router.sample(request(str(at), [5], 50)) for at in range(4)))
            await until(lambda: scene.events(GeneratorReplaced))
            version = scene.publisher.version
            assert {event.step for event in scene.events(WeightsPublished)} == {7}
            assert [engine.received[-1] for engine in scene.cluster.engines] == [version, version]
            assert all(set(reply.versions) <= {last + 1, version} for reply in replies)

    asyncio.run(run())


@pytest.mark.parametrize("last", [-1, 409])
@pytest.mark.parametrize("together", [False, True])
def test_a_generator_that_dies_before_the_first_publication_is_replaced(
    together: bool, last: int, tmp_path: Path
) -> None:
    """`last` is the last version of the process before."""

    async def run() -> None:
        async with open_scene(tmp_path, together=together, published=False) as scene:
            scene.publisher.version = last
            scene.cluster.dead.add(1)
            await until(lambda: scene.events(GeneratorReplaced))
            await scene.publisher.publish(7)
            assert [engine.received for engine in scene.cluster.engines] == [[last + 1], [last + 1]]
            assert len((await scene.router.sample(request("one", [5], 3))).ids) == 3

    asyncio.run(run())


def test_a_sender_that_waits_for_a_dead_generator_to_arrive_gives_up(tmp_path: Path) -> None:
    meeting = tmp_path / "meeting"

    async def run() -> None:
        async with open_scene(tmp_path, together=True) as scene:
            scene.publisher.transport = Transport(concurrent=True, meeting=meeting)
            open_meeting(meeting)
            send = scene.trainer.send

            async def arrive(version: int) -> Digest:
                while len(scene.cluster.dead) and not is_cancelled(meeting, version):
                    await asyncio.sleep(0.01)
                return await send(version)

            scene.trainer.send = arrive
            scene.cluster.dying[0] = "receive"
            await scene.publisher.publish(1)
            versions = [event.version for event in scene.events(WeightsPublished)]
            assert is_cancelled(meeting, 1) and versions[0] == 0 and versions[1] > 1
            assert not is_cancelled(meeting, versions[1])

    asyncio.run(run())


def test_two_generators_that_die_in_one_broadcast_are_both_replaced_before_it_is_repeated(tmp_path: Path) -> None:
    async def run() -> None:
        async with open_scene(tmp_path, 3, together=True) as scene:
            scene.cluster.dying |= {0: "receive", 2: "receive"}
            await scene.publisher.publish(1)
            assert [event.step for event in scene.events(WeightsPublished)] == [0, 1]
            assert sorted(scene.cluster.replaced) == [0, 2]
            assert all(engine.received[-1] == scene.publisher.version for engine in scene.cluster.engines)

    asyncio.run(run())


def test_a_broadcast_that_fails_with_all_generators_alive_stops_the_run(tmp_path: Path) -> None:
    async def run() -> None:
        async with open_scene(tmp_path, together=True) as scene:

            async def send(version: int) -> Digest:
                raise RunStopped("weights: version 1 was not transferred (timed out)")

            scene.trainer.send = send
            with pytest.raises(RunStopped, match="timed out"):
                await scene.publisher.publish(1)

    asyncio.run(run())


def test_a_replacement_that_cannot_start_counts_and_past_the_budget_the_run_stops(tmp_path: Path) -> None:
    async def run() -> None:
        async with open_scene(tmp_path, most=2) as scene:
            scene.cluster.failing = 5
            scene.cluster.dead.add(0)
            await until(lambda: len(scene.cluster.replaced) == 2)
            await asyncio.sleep(0.05)

    with pytest.raises(BaseExceptionGroup) as raised:
        asyncio.run(run())
    (error,) = raised.value.exceptions
    assert isinstance(error, RunStopped)
    assert str(error) == ("generator 0: cannot start (2 generators were replaced before, see ray.max_replacements)")


def test_without_replacement_a_dead_generator_ends_the_run(tmp_path: Path) -> None:
    async def run() -> None:
        async with open_scene(tmp_path) as scene:
            scene.router.replace_generator = None
            scene.cluster.dead.add(0)
            await asyncio.sleep(0.05)

    with pytest.raises(BaseExceptionGroup) as raised:
        asyncio.run(run())
    assert isinstance(raised.value.exceptions[0], WorkerDied)
