"""Devices of the trainer that generators use while it waits: no token is lost, and none serves unattested weights."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from roll.cluster.inline import InlineCluster
from roll.engines.base import Part, Request, Trainer
from roll.engines.fake import FakeTrainer
from roll.errors import NodeLost, RunStopped, WorkerDied
from roll.journal.events import DevicesLent, DevicesReturned, Event, WeightsPublished
from roll.journal.store import Activity, Journal
from roll.serving.canary import Canary
from roll.serving.dispatch import Concurrency
from roll.serving.lending import Lender
from roll.serving.lending_rule import LendingRule
from roll.serving.lent_devices import LentDevices
from roll.serving.publisher import Publisher, ReplacementPolicy
from roll.serving.router import Router
from roll.sim.sharing import TimeSharing
from roll.weights.digest import Digest
from tests.engines.models import request
from tests.serving.test_replacement import RESUME, Mortal, Streaming, until

SIZE, LENT = 3, 1
"""Generators, of which the first share devices with the trainer."""
WEIGHTS: set[Part] = {"weights", "optimizer"}


class Always(LendingRule):
    """Every wait is worth it."""

    def __init__(self, factor: float) -> None:
        super().__init__(factor)
        self.lends_s: list[float] = []

    def record_lend(self, seconds: float) -> None:
        self.lends_s.append(seconds)

    def pays(self, waited_s: float) -> bool:
        return True


class Placed(Streaming):
    """Fails if it works without its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.resident = {"weights", "kv"}
        self.may_load = asyncio.Event()
        self.may_load.set()

    async def submit(self, requests: Sequence[Request]) -> None:
        assert self.resident == {"weights", "kv"}
        await super().submit(requests)

    async def receive(self, version: int) -> Digest:
        assert self.resident == {"weights", "kv"}
        return await super().receive(version)

    async def offload(self, parts: Sequence[Part]) -> None:
        assert self.paused and not self._requests
        await super().offload(parts)

    async def onload(self, parts: Sequence[Part]) -> None:
        await self.may_load.wait()
        await super().onload(parts)


class OtherModel(Placed):
    async def receive(self, version: int) -> Digest:
        await super().receive(version)
        return Digest({"fake": (7, 7)})


class Generators(Mortal):
    def __init__(self) -> None:
        super().__init__(SIZE)
        self._renew(range(SIZE))
        self.lost = set[int]()
        """Dead ranks whose nodes are lost."""

    async def at(self, rank: int, method: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return await super().at(rank, method, *args, **kwargs)
        except WorkerDied as died:
            raise NodeLost(died.what, RESUME) if rank in self.lost else died from None

    def _renew(self, ranks: Sequence[int], kind: type[Placed] = Placed) -> None:
        for rank in ranks:
            self.engines[rank] = kind()
        self._workers = tuple(self.engines)

    async def replace(self, rank: int) -> None:
        await super().replace(rank)
        self._renew([rank])


class Scene:
    """A trainer whose devices are lent after the first update."""

    def __init__(self, path: Path) -> None:
        self.cluster, self.trainer, self.rule = Generators(), FakeTrainer(), Always(1.0)
        self.trainer.resident = set(WEIGHTS)
        self.router = Router(self.cluster, max_wait_s=0.05, concurrency=Concurrency(limit=2))
        self.router.lent |= set(range(LENT))
        self.journal = Journal(path / "journal.db")
        trainers = InlineCluster[Trainer]([self.trainer])
        self.devices = LentDevices(
            placement=TimeSharing(num_generators=LENT, move_s=0.0).placement(SIZE),
            clusters={"actor_train": trainers, "actor_infer": self.cluster},
            router=self.router,
            journal=self.journal,
            rule=self.rule,
            ranks=tuple(range(LENT)),
        )
        self.publisher = Publisher(
            trainers=trainers,
            generators=self.cluster,
            router=self.router,
            journal=self.journal,
            canary=Canary(ids=(5, 6, 7), num_new=2),
            device_sharing=self.devices,
            replacement=ReplacementPolicy(
                replace=self.cluster.replace, max_replacements=99, notice=lambda text: None, min_workers=SIZE - LENT
            ),
        )
        self.router.replace_generator = self.publisher.replace_generator
        self.notices: list[str] = []
        self.lender = Lender(devices=self.devices, publisher=self.publisher, notice=self.notices.append, poll_s=0.001)
        self._num_updates = 0

    @property
    def lent(self) -> Placed:
        engine = self.cluster.engines[0]
        assert isinstance(engine, Placed)
        return engine

    async def update(self) -> None:
        """One step of the trainer after its wait: it gets its devices, trains and publishes."""
        await self.devices.enter("update")
        assert self.trainer.resident == WEIGHTS
        self._num_updates += 1
        await self.publisher.publish(self._num_updates)

    def events(self, kind: type[Event]) -> list[Event]:
        self.journal.flush()
        return [entry.event for entry in self.journal.events(kind)]


@asynccontextmanager
async def open_scene(path: Path) -> AsyncIterator[Scene]:
    scene = Scene(path)
    with closing(scene.journal):
        await scene.publisher.publish(0)
        running = [asyncio.create_task(scene.router.run()), asyncio.create_task(scene.lender.run())]
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


def sample(scene: Scene, num: int, num_tokens: int) -> tuple[list[Request], "asyncio.Future[list[object]]"]:
    asked = [request(str(at), [5, 6], num_tokens) for at in range(num)]
    return asked, asyncio.gather(*(scene.router.sample(each) for each in asked))


def test_the_first_wait_is_lent_and_the_trainer_gets_its_devices_back_with_no_token_lost(tmp_path: Path) -> None:
    async def run() -> None:
        async with open_scene(tmp_path) as scene:
            assert not scene.trainer.resident and scene.lent.resident == {"weights", "kv"}
            asked, sampling = sample(scene, 8, 300)
            await until(lambda: scene.router.counts.tokens > 60)
            assert scene.lent.submitted
            await scene.devices.enter("update")
            assert scene.trainer.resident == WEIGHTS and not scene.lent.resident
            num_submitted = len(scene.lent.submitted)
            replies = await sampling
            assert len(scene.lent.submitted) == num_submitted, "nothing is sent to a device of the trainer"
            for one, reply in zip(asked, replies, strict=True):
                assert reply.ids.tolist() == expected(one, 300)
            assert scene.router.counts.tokens == 8 * 300, "none was sampled twice"
            (event,) = scene.events(DevicesReturned)
            assert event.generators == (0,) and event.num_requests == 2 and event.num_tokens > 0

    asyncio.run(run())


def test_a_generator_on_lent_devices_attests_the_served_version_before_it_serves(tmp_path: Path) -> None:
    async def run() -> None:
        async with open_scene(tmp_path) as scene:
            await scene.update()
            assert scene.lent.calls == ["receive 0", "resume 0"], "version 1 is published to the others"
            asked, sampling = sample(scene, 8, 200)
            await until(lambda: "submit" in scene.lent.calls)
            assert scene.lent.calls[2:5] == ["receive 1", "resume 1", "submit"]
            (event,) = scene.events(DevicesLent)
            assert (event.generators, event.version) == ((0,), 1) and scene.rule.lends_s == [event.seconds]
            assert event.digest == scene.events(WeightsPublished)[-1].digest
            for one, reply in zip(asked, await sampling, strict=True):
                assert reply.ids.tolist() == expected(one, 200) and set(reply.versions) == {1}
            await scene.update()
            assert [engine.received[-1] for engine in scene.cluster.engines] == [1, 2, 2]

    asyncio.run(run())


def test_a_generator_with_other_weights_ends_the_run_before_it_serves(tmp_path: Path) -> None:
    async def run() -> None:
        async with open_scene(tmp_path) as scene:
            await scene.update()
            scene.cluster._renew([0], OtherModel)
            scene.lent.resident.clear()
            _, sampling = sample(scene, 8, 200)
            try:
                await until(lambda: len(scene.lent.received) > 0)
                await asyncio.sleep(0.02)
                assert not scene.lent.submitted and not scene.events(DevicesLent)
            finally:
                sampling.cancel()

    with pytest.raises((RunStopped, ExceptionGroup), match="generator 0 does not hold the trainer's weights"):
        asyncio.run(run())


def test_nothing_is_lent_while_no_request_waits_or_the_trainer_works(tmp_path: Path) -> None:
    async def run() -> None:
        async with open_scene(tmp_path) as scene:
            await scene.update()
            _, sampling = sample(scene, 4, 100)  # the others have room for four
            await sampling
            assert not scene.events(DevicesLent)
            await scene.devices.enter("update")
            _, sampling = sample(scene, 12, 100)
            await sampling
            assert not scene.events(DevicesLent) and scene.lent.calls == ["receive 0", "resume 0"]

    asyncio.run(run())


def test_a_batch_that_completes_during_the_move_gets_the_devices_back_unused(tmp_path: Path) -> None:
    async def run() -> None:
        async with open_scene(tmp_path) as scene:
            await scene.update()
            scene.lent.may_load.clear()
            _, sampling = sample(scene, 8, 100)
            await until(lambda: not scene.trainer.resident)  # the generator's parts come next
            update = asyncio.create_task(scene.devices.enter("update"))
            await until(lambda: not scene.devices.waiting.is_set())
            scene.lent.may_load.set()
            await update
            assert scene.trainer.resident == WEIGHTS and not scene.lent.resident
            await sampling
            assert not scene.lent.submitted and scene.lent.received == [0]

    asyncio.run(run())


def test_a_generator_that_dies_on_lent_devices_loses_no_request_and_is_replaced_for_the_next_wait(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        async with open_scene(tmp_path) as scene:
            asked, sampling = sample(scene, 8, 300)
            await until(lambda: scene.router.counts.tokens > 60 and len(scene.lent.submitted) > 0)
            scene.cluster.dead.add(0)
            await until(lambda: 0 in scene.router.absent)
            await scene.devices.enter("update")
            assert not scene.cluster.replaced, "a new process would use the trainer's device"
            assert scene.trainer.resident == WEIGHTS
            await scene.publisher.publish(1)
            await until(lambda: bool(scene.events(DevicesLent)))
            assert scene.cluster.replaced == [0] and scene.lent.received == [1]
            assert not scene.rule.lends_s, "the start of a process is not the cost of a move"
            for one, reply in zip(asked, await sampling, strict=True):
                assert reply.ids.tolist() == expected(one, 300)

    asyncio.run(run())


def test_a_device_of_a_lost_node_is_not_lent_any_more(tmp_path: Path) -> None:
    async def run() -> None:
        async with open_scene(tmp_path) as scene:
            asked, sampling = sample(scene, 8, 300)
            await until(lambda: len(scene.lent.submitted) > 0)
            scene.cluster.lost.add(0)
            scene.cluster.dead.add(0)
            await scene.update()
            await until(lambda: bool(scene.notices))
            for one, reply in zip(asked, await sampling, strict=True):
                assert reply.ids.tolist() == expected(one, 300)
            await scene.update()
            (notice,) = scene.notices
            assert notice.startswith("generator 0: its device is not lent any more") and not scene.cluster.replaced

    asyncio.run(run())


def test_a_generator_without_its_device_is_idle_because_of_the_trainer(tmp_path: Path) -> None:
    async def run() -> None:
        async with open_scene(tmp_path) as scene:
            activities = [Activity(scene.journal, f"generator-{rank}") for rank in range(SIZE)]
            scene.router.activities.start(activities)
            await scene.devices.enter("update")
            await scene.publisher.publish(1)
            for activity in activities:
                activity.close()
            scene.journal.flush()
            idle = {span.activity for span in scene.journal.spans() if span.worker == "generator-0"}
            assert "idle: the trainer" in idle

    asyncio.run(run())


@pytest.mark.parametrize("seed", range(2))
def test_no_request_is_lost_while_devices_change_hands_and_generators_die(seed: int, tmp_path: Path) -> None:
    random_source = random.Random(seed)

    async def disturb(scene: Scene) -> None:
        while True:
            target = scene.router.counts.tokens + 60
            await until(lambda target=target: scene.router.counts.tokens > target)
            if random_source.random() < 0.3:
                scene.cluster.dead.add(random_source.randrange(SIZE))
            await scene.update()

    async def run() -> None:
        async with open_scene(tmp_path) as scene:
            disturbing = asyncio.create_task(disturb(scene))
            asked, sampling = sample(scene, 12, 150)
            replies = await sampling
            disturbing.cancel()
            for one, reply in zip(asked, replies, strict=True):
                assert reply.ids.tolist() == expected(one, 150)
                assert list(reply.versions) == sorted(reply.versions)
            digests = {event.version: event.digest for event in scene.events(WeightsPublished)}
            assert scene.events(DevicesLent) and scene.events(DevicesReturned)
            assert all(digests[event.version] == event.digest for event in scene.events(DevicesLent))

    asyncio.run(run())
