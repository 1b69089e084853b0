"""Generators that join and leave: none serves unattested weights, and no request is lost."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from roll.cluster.inline import InlineCluster
from roll.engines.base import Output, Request, Trainer
from roll.engines.fake import FakeTrainer
from roll.errors import NoRoom, WorkerDied
from roll.journal.events import GeneratorJoined, GeneratorLeft, GeneratorRefused, WeightsPublished
from roll.journal.store import Journal
from roll.serving.canary import Canary
from roll.serving.elastic import ElasticBounds, ElasticGenerators
from roll.serving.publisher import Publisher, ReplacementPolicy
from roll.serving.router import Router
from roll.tracking.wanted import WantedGenerators, read_wanted
from roll.weights.digest import Digest
from tests.engines.models import request
from tests.serving.test_replacement import RESUME, Mortal, Streaming, until

MOST = 4


class OtherModel(Streaming):
    async def receive(self, version: int) -> Digest:
        await super().receive(version)
        return Digest({"fake": (7, 7)})


class OtherArithmetic(Streaming):
    async def probe(self, ids: Sequence[int], num_new: int) -> Output:
        output = await super().probe(ids, num_new)
        ids = output.ids.tolist()
        return Output.of("probe", ids, [-2.0] * len(ids), version=0, finish=output.finish)


class Broken(Streaming):
    async def start(self) -> None:
        raise RuntimeError("size mismatch for lm_head.weight\nTraceback ...")


class Growing(Mortal):
    """Has one generator at first, and room for `room` processes."""

    def __init__(self, room: int) -> None:
        super().__init__(MOST)
        self.absent, self.room, self.kind = set(range(1, MOST)), room, Streaming
        self.refused: list[int] = []
        self.drained = set[int]()

    async def at(self, rank: int, method: Any, *args: Any, **kwargs: Any) -> Any:
        if rank in self.absent:
            raise WorkerDied(f"generator {rank}: has left the run", RESUME)
        return await super().at(rank, method, *args, **kwargs)

    async def add(self, rank: int) -> None:
        if MOST - len(self.absent) >= self.room:
            raise NoRoom(f"generator {rank}: no node has a free CPU")
        self.absent.discard(rank)
        await asyncio.sleep(0)
        self.engines[rank] = self.kind()
        self._workers = tuple(self.engines)
        self.dead.discard(rank)

    async def remove(self, rank: int, *, refused: bool = False) -> None:
        self.absent.add(rank)
        self.dead.add(rank)
        self.drained.discard(rank)
        if refused:
            self.refused.append(rank)
            self.room -= 1  # a refused one's node is not used again

    async def draining(self) -> set[int]:
        return set(self.drained)

    def node(self, rank: int) -> str:
        return f"10.0.0.{rank}:1"


class Scene:
    def __init__(self, path: Path, *, room: int, fewest: int) -> None:
        self.cluster, self.path = Growing(room), path
        self.router, self.journal = Router(self.cluster, max_wait_s=0.05), Journal(path / "journal.db")
        self.notices: list[str] = []
        self.publisher = Publisher(
            trainers=InlineCluster[Trainer]([FakeTrainer()]),
            generators=self.cluster,
            router=self.router,
            journal=self.journal,
            canary=Canary(ids=(5, 6, 7), num_new=2),
            replacement=ReplacementPolicy(
                replace=self.cluster.replace, max_replacements=99, notice=self.notices.append, min_workers=fewest
            ),
        )
        self.router.replace_generator = self.publisher.replace_generator
        self.elastic = ElasticGenerators(
            pool=self.cluster,
            publisher=self.publisher,
            bounds=ElasticBounds(fewest=fewest, most=MOST, initial=1, start_timeout_s=5.0),
            requests=lambda: read_wanted(path),
            confirm=lambda wanted: wanted.write(path),
            journal=self.journal,
            notice=self.notices.append,
            poll_s=0.001,
        )

    def want(self, number: int | None = None, *remove: int) -> None:
        WantedGenerators(number=number, remove=remove).write(self.path)

    def events(self, kind: Any) -> list[Any]:
        self.journal.flush()
        return [entry.event for entry in self.journal.events(kind)]


@asynccontextmanager
async def open_scene(path: Path, *, room: int = MOST, fewest: int = 1) -> AsyncIterator[Scene]:
    scene = Scene(path, room=room, fewest=fewest)
    with closing(scene.journal):
        await scene.publisher.publish(0)
        running = [asyncio.create_task(scene.router.run()), asyncio.create_task(scene.elastic.run())]
        try:
            async with asyncio.timeout(60):
                yield scene
        finally:
            for task in running:
                task.cancel()
            await asyncio.wait(running)
        for task in running:
            if not task.cancelled() and (error := task.exception()):
                raise error


def expected(one: Request, num_tokens: int) -> list[int]:
    return [10 + (one.key + at) % 10 for at in range(num_tokens)]


def test_generators_join_with_the_served_version_up_to_the_bound_and_take_requests(tmp_path: Path) -> None:
    async def run() -> None:
        async with open_scene(tmp_path, room=3) as scene:
            await scene.publisher.publish(1)
            scene.want(4)
            await until(lambda: len(scene.events(GeneratorJoined)) == 2)  # no node has room for the fourth
            digest = scene.events(WeightsPublished)[-1].digest
            assert {(event.version, event.digest) for event in scene.events(GeneratorJoined)} == {(1, digest)}
            assert all(scene.cluster.engines[rank].calls == ["receive 1", "resume 1"] for rank in (1, 2))
            replies = await asyncio.gather(*(scene.router.sample(request(str(at), [5], 30)) for at in range(6)))
            assert all(set(reply.versions) == {1} for reply in replies)
            assert all(scene.cluster.engines[rank].submitted for rank in range(3)), "those that joined take their share"
            await scene.publisher.publish(2)
            assert [scene.cluster.engines[rank].received[-1] for rank in range(3)] == [2, 2, 2]

    asyncio.run(run())


def test_requests_of_a_generator_that_leaves_continue_on_others_with_their_tokens(tmp_path: Path) -> None:
    async def run() -> None:
        async with open_scene(tmp_path) as scene:
            scene.want(3)
            await until(lambda: len(scene.events(GeneratorJoined)) == 2)
            asked = [request(str(at), [5, 6], 400) for at in range(6)]
            sampling = [asyncio.create_task(scene.router.sample(each)) for each in asked]
            await until(lambda: scene.router.counts.tokens > 60)
            scene.want(None, 2)
            await until(lambda: scene.events(GeneratorLeft))
            scene.want(1)
            await until(lambda: len(scene.events(GeneratorLeft)) == 2)
            replies = await asyncio.gather(*sampling)
            for one, reply in zip(asked, replies, strict=True):
                assert reply.ids.tolist() == expected(one, 400)
            assert scene.router.counts.tokens == 6 * 400, "none was sampled twice"
            assert [event.generator for event in scene.events(GeneratorLeft)] == [2, 1]
            assert all(event.num_requests and event.num_tokens for event in scene.events(GeneratorLeft))
            assert scene.cluster.absent == scene.router.absent == {1, 2, 3}
            assert read_wanted(tmp_path) == WantedGenerators(number=1)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        (OtherModel, "does not hold the trainer's weights"),
        (OtherArithmetic, "computes differently with them"),
        (Broken, "RuntimeError: size mismatch for lm_head.weight"),
    ],
)
def test_a_generator_of_another_build_is_refused_with_one_line_and_the_run_goes_on(
    kind: type[Streaming], fault: str, tmp_path: Path
) -> None:
    async def run() -> None:
        async with open_scene(tmp_path, room=2) as scene:
            scene.cluster.kind = kind
            scene.want(2)
            await until(lambda: scene.events(GeneratorRefused))
            reply = await scene.router.sample(request("one", [5], 3))
            await scene.publisher.publish(1)
            assert len(reply.ids) == 3 and scene.cluster.refused == [1] and 1 in scene.cluster.absent
            assert not scene.cluster.engines[1].submitted and not scene.events(GeneratorJoined)
            (event,) = scene.events(GeneratorRefused)
            (line,) = [notice for notice in scene.notices if "may not join" in notice]
            assert fault in event.reason and fault in line and "\n" not in line and "10.0.0.1:1" in line

    asyncio.run(run())


def test_a_drained_generator_leaves_unless_too_few_stay_and_another_takes_over_first(tmp_path: Path) -> None:
    async def run() -> None:
        async with open_scene(tmp_path, room=1) as scene:
            sampling = asyncio.create_task(scene.router.sample(request("long", [5], 600)))
            await until(lambda: scene.router.counts.tokens > 5)
            scene.cluster.drained.add(0)
            await asyncio.sleep(0.05)
            assert not scene.events(GeneratorLeft), "no other node has room yet"
            scene.cluster.room = 2
            await until(lambda: scene.events(GeneratorLeft))
            assert [event.generator for event in scene.events(GeneratorJoined)] == [1]
            assert (await sampling).ids.tolist() == expected(request("long", [5], 600), 600)
            scene.want(None, 1)
            await until(lambda: any("cannot leave, at least 1 stay" in notice for notice in scene.notices))

    asyncio.run(run())


def test_a_damaged_request_file_is_reported_once_and_changes_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        async with open_scene(tmp_path) as scene:
            (tmp_path / "generators.json").write_text("4 please")
            await until(lambda: scene.notices)
            await asyncio.sleep(0.05)
            (notice,) = scene.notices
            assert "generators.json: is not of the form" in notice and scene.cluster.absent == {1, 2, 3}

    asyncio.run(run())


@pytest.mark.parametrize("seed", range(3))
def test_no_request_is_lost_while_generators_join_leave_and_die_and_versions_change(seed: int, tmp_path: Path) -> None:
    random_source = random.Random(seed)

    async def disturb(scene: Scene) -> None:
        step = 0
        while True:
            target = scene.router.counts.tokens + 80
            await until(lambda target=target: scene.router.counts.tokens > target)
            match random_source.randrange(4):
                case 0:
                    scene.want(random_source.randint(1, MOST))
                case 1:
                    scene.want(None, random_source.randrange(MOST))
                case 2:
                    serving = [rank for rank in range(MOST) if rank not in scene.cluster.absent]
                    scene.cluster.dead.add(random_source.choice(serving))
                case _:
                    step += 1
                    await scene.publisher.publish(step)

    async def run() -> None:
        async with open_scene(tmp_path) as scene:
            disturbing = asyncio.create_task(disturb(scene))
            asked = [request(str(at), [5, 6], 300) for at in range(24)]
            replies = await asyncio.gather(*(scene.router.sample(each) for each in asked))
            disturbing.cancel()
            for one, reply in zip(asked, replies, strict=True):
                assert reply.ids.tolist() == expected(one, 300)
                assert list(reply.versions) == sorted(reply.versions)
            digests = {event.version: event.digest for event in scene.events(WeightsPublished)}
            assert all(digests[event.version] == event.digest for event in scene.events(GeneratorJoined))

    asyncio.run(run())
