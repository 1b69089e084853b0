"""Lost trainers are replaced and brought to the same state, whenever they are lost."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from roll.algorithms.recipe import Objective
from roll.cluster.inline import InlineCluster
from roll.engines.base import AsyncSaver, Generator, Offloadable, Trainer
from roll.engines.fake import FakeGenerator, FakeTrainer
from roll.errors import RunStopped, StateLost, WorkerDied
from roll.journal.events import WeightsPublished, WorkerReplaced
from roll.journal.store import Journal
from roll.serving.publisher import Publisher
from roll.serving.recovery import RecoveringCluster, RecoveryPolicy
from roll.serving.router import Router
from roll.types import Batch, Spec
from roll.weights.channel import Transport
from tests.engines.models import batch_of

OBJECTIVE = Objective(loss=Spec("clipped"))


def batch() -> Batch:
    return batch_of([[1, 2, 3], [4, 5]])


class Saving(FakeTrainer):
    """Saves in the background; its disk may be full, and its updates may block."""

    def __init__(self, owner: "Mortal") -> None:
        super().__init__()
        self._owner = owner

    async def update(self, batch: Batch, objective: Objective) -> dict[str, float]:
        if self._owner.blocked:
            await asyncio.Event().wait()
        return await super().update(batch, objective)

    async def save(self, path: Path, *, resumable: bool = True, wait: bool = True) -> None:
        if self._owner.full:
            raise OSError(28, "No space left on device")
        await super().save(path)

    async def save_completed(self) -> bool:
        return True


class Mortal(InlineCluster[Trainer]):
    """A trainer that dies in the next call of a method, before or after its work, and can be replaced or killed."""

    def __init__(self) -> None:
        self.dying = self.dying_after = ""
        self.dead = self.blocked = self.full = self.is_stopped = False
        self.failing = 0
        self.may_start = asyncio.Event()
        self.may_start.set()
        self.killed: list[str] = []
        self._waiting: set[asyncio.Future[Any]] = set()
        self.trainer = Saving(self)
        super().__init__([self.trainer])

    async def at(self, rank: int, method: Any, *args: Any, **kwargs: Any) -> Any:
        name = method.__name__
        if self.dying == name:
            self.dying, self.dead = "", True
        if self.dead:
            raise WorkerDied(f"actor_train 0: ended during {name}", "then resume")
        call = asyncio.ensure_future(super().at(rank, method, *args, **kwargs))
        self._waiting.add(call)
        await asyncio.wait([call])
        self._waiting.discard(call)
        if self.dying_after == name:
            self.dying_after, self.dead = "", True
        if self.dead:
            raise WorkerDied(f"actor_train 0: ended during {name}", "then resume")
        return call.result()

    async def replace(self, rank: int) -> None:
        await self.may_start.wait()
        if self.failing:
            self.failing -= 1
            raise WorkerDied("actor_train 0: cannot start")
        self.trainer = Saving(self)
        self._workers = (self.trainer,)
        self.dead = self.blocked = self.is_stopped = False

    def kill_worker(self, rank: int, reason: str) -> None:
        self.killed.append(reason)
        self.dead = True
        for call in self._waiting:
            call.cancel()

    def stopped(self, rank: int) -> bool:
        return self.is_stopped


class Scene:
    """One trainer with replacement, which has started."""

    def __init__(self, path: Path, *, most: int, snapshot_s: float, hang_s: float, broadcasts: bool) -> None:
        self.path, self.mortal, self.notices = path, Mortal(), list[str]()
        self.journal = Journal(path / "journal.db")
        self.cluster = RecoveringCluster[Trainer](
            self.mortal, role="actor_train", snapshots=path / "weights-state", sends=True, broadcasts=broadcasts
        )
        self.policy = RecoveryPolicy(
            journal=self.journal,
            max_replacements=most,
            hang_timeout_s=hang_s,
            snapshot_s=snapshot_s,
            notice=self.notices.append,
        )

    async def step(self, version: int) -> None:
        await self.cluster.scatter(Trainer.update, [batch()], OBJECTIVE)
        await self.cluster.each(Trainer.send, version)
        self.cluster.snapshot_if_due()

    async def snapshot_written(self) -> None:
        if self.cluster._writing is not None:
            await asyncio.wait([self.cluster._writing])

    def events(self, kind: Any) -> list[Any]:
        self.journal.flush()
        return [entry.event for entry in self.journal.events(kind)]


@asynccontextmanager
async def open_scene(
    path: Path, *, most: int = 3, snapshot_s: float = 100.0, hang_s: float = 100.0, broadcasts: bool = False
) -> AsyncIterator[Scene]:
    scene = Scene(path, most=most, snapshot_s=snapshot_s, hang_s=hang_s, broadcasts=broadcasts)
    with closing(scene.journal):
        await scene.cluster.each(Trainer.start)
        scene.cluster.policy = scene.policy
        async with asyncio.timeout(20):
            yield scene


@pytest.mark.parametrize("method", ["update", "logprobs", "send", "save", "offload", "onload"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_call_that_loses_its_worker_is_repeated_in_the_same_state(method: str, when: str, tmp_path: Path) -> None:
    async def run() -> None:
        async with open_scene(tmp_path) as scene:
            await scene.step(1)
            await scene.step(2)
            if when == "before":
                scene.mortal.dying = method
            else:
                scene.mortal.dying_after = method
            await scene.cluster.at(0, Offloadable.offload, ["optimizer"])
            await scene.cluster.at(0, Offloadable.offload, ["weights"])
            await scene.cluster.at(0, Offloadable.onload, ["weights"])
            await scene.cluster.at(0, Trainer.logprobs, batch())
            await scene.step(3)
            await scene.cluster.at(0, Trainer.save, tmp_path / "save")
            trainer = scene.mortal.trainer
            assert trainer.num_updates == 3 and trainer.resident == {"weights"}
            assert (tmp_path / "save/model.safetensors").read_text() == "3"
            (event,) = scene.events(WorkerReplaced)
            assert event.worker == "actor_train 0" and event.reason == f"actor_train 0: ended during {method}"
            assert len(scene.notices) == 2 and not any("resume" in line for line in scene.notices), "the run goes on"

    asyncio.run(run())


def test_a_checkpoint_replaces_the_updates_before_it_once_it_is_complete(tmp_path: Path) -> None:
    async def run() -> None:
        async with open_scene(tmp_path) as scene:
            await scene.step(1)
            await scene.cluster.at(0, AsyncSaver.save, tmp_path / "step-1", wait=False)
            await scene.step(2)
            scene.mortal.dead = True
            await scene.step(3)
            scene.cluster.saved(tmp_path / "step-1")
            scene.mortal.dead = True
            await scene.step(4)
            assert scene.mortal.trainer.num_updates == 4
            assert [event.num_updates for event in scene.events(WorkerReplaced)] == [2, 2]

    asyncio.run(run())


def test_a_worker_is_restored_from_what_it_was_resumed_with(tmp_path: Path) -> None:
    async def run() -> None:
        async with open_scene(tmp_path) as scene:
            (tmp_path / "model.safetensors").write_text("40")
            scene.cluster.policy = None
            await scene.cluster.each(Trainer.load, tmp_path)
            scene.cluster.policy = scene.policy
            await scene.step(1)
            scene.mortal.dead = True
            await scene.step(2)
            assert scene.mortal.trainer.num_updates == 42

    asyncio.run(run())


def test_snapshots_bound_the_updates_that_are_repeated(tmp_path: Path) -> None:
    async def run() -> None:
        async with open_scene(tmp_path, snapshot_s=1e-9) as scene:
            for version in range(1, 4):
                await scene.step(version)
                await scene.snapshot_written()
                scene.cluster._snapshot_took_s = 0.0  # else few of them are made
            assert [path.name for path in tmp_path.glob("weights-state*")] == ["weights-state-0-3"], "only the newest"
            scene.mortal.dead = True
            await scene.step(4)
            assert scene.mortal.trainer.num_updates == 4 and scene.events(WorkerReplaced)[0].num_updates == 0

    asyncio.run(run())


def test_without_replacement_a_loss_is_raised_and_no_batch_is_kept(tmp_path: Path) -> None:
    async def run() -> None:
        async with open_scene(tmp_path) as scene:
            scene.cluster.policy = None
            await scene.step(1)
            assert not scene.cluster._workers[0].updates
            scene.mortal.dead = True
            with pytest.raises(WorkerDied, match="ended during update; then resume"):
                await scene.step(2)

    asyncio.run(run())


@pytest.mark.parametrize("fault", ["full", "lost"])
def test_a_snapshot_that_fails_changes_nothing(fault: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with open_scene(tmp_path, snapshot_s=1e-9) as scene:
            if fault == "full":
                scene.mortal.full = True
            else:
                scene.mortal.dying = "save"
            await scene.step(1)
            await scene.snapshot_written()
            scene.mortal.dead = True
            await scene.step(2)
            assert scene.mortal.trainer.num_updates == 2 and len(scene.events(WorkerReplaced)) == 1

    asyncio.run(run())
    assert ("No space left on device" in caplog.text) == (fault == "full")
    assert not list(tmp_path.glob("weights-state-0-1"))


@pytest.mark.parametrize("blocked", [False, True])
def test_a_worker_that_hangs_is_killed_and_replaced(blocked: bool, tmp_path: Path) -> None:
    async def run() -> None:
        async with open_scene(tmp_path, hang_s=0.05) as scene:
            await scene.step(1)
            scene.mortal.blocked = True
            scene.mortal.is_stopped = not blocked
            await scene.step(2)
            assert scene.mortal.trainer.num_updates == 2 and len(scene.events(WorkerReplaced)) == 1
            (reason,) = scene.mortal.killed
            assert reason.startswith("did not respond for ") and "ray.hang_timeout_s" in reason

    asyncio.run(run())


def test_a_slow_first_call_is_not_taken_for_a_hang(tmp_path: Path) -> None:
    async def run() -> None:
        async with open_scene(tmp_path, hang_s=0.02) as scene:
            scene.mortal.blocked = True
            first = asyncio.create_task(scene.step(1))
            await asyncio.sleep(0.3)
            assert not first.done() and not scene.mortal.killed
            first.cancel()

    asyncio.run(run())


def test_calls_during_a_replacement_wait_for_the_restored_state(tmp_path: Path) -> None:
    async def run() -> None:
        async with open_scene(tmp_path) as scene:
            await scene.step(1)
            scene.mortal.may_start.clear()
            scene.mortal.dead = True
            first = asyncio.create_task(scene.cluster.at(0, Trainer.save, tmp_path / "first"))
            second = asyncio.create_task(scene.cluster.at(0, Trainer.save, tmp_path / "second"))
            await asyncio.sleep(0.02)
            first.cancel()  # the other call then replaces the worker
            await asyncio.sleep(0.02)
            scene.mortal.may_start.set()
            await second
            assert (tmp_path / "second/model.safetensors").read_text() == "1"
            assert len(scene.events(WorkerReplaced)) == 1

    asyncio.run(run())


def test_updates_in_a_save_that_is_completed_during_a_replacement_are_not_repeated(tmp_path: Path) -> None:
    async def run() -> None:
        async with open_scene(tmp_path) as scene:
            await scene.step(1)
            await scene.cluster.at(0, Trainer.save, tmp_path / "step-1")
            scene.mortal.may_start.clear()
            scene.mortal.dead = True
            step = asyncio.create_task(scene.step(2))
            while not scene.notices:
                await asyncio.sleep(0)
            scene.cluster.saved(tmp_path / "step-1")
            scene.mortal.may_start.set()
            await step
            assert scene.mortal.trainer.num_updates == 2
            assert [event.num_updates for event in scene.events(WorkerReplaced)] == [0]

    asyncio.run(run())


def test_a_used_up_budget_ends_the_run_in_one_line(tmp_path: Path) -> None:
    async def run() -> None:
        async with open_scene(tmp_path, most=2) as scene:
            scene.mortal.dead, scene.mortal.failing = True, 5
            for _ in range(2):
                with pytest.raises(RunStopped, match=r"cannot start.*2 workers of actor_train were replaced before"):
                    await scene.step(1)
            assert scene.mortal.failing == 3

    asyncio.run(run())


@pytest.mark.parametrize("method", ["save_completed", "update"])
def test_a_save_that_died_with_its_process_is_not_taken_for_a_complete_one(method: str, tmp_path: Path) -> None:
    async def run() -> None:
        async with open_scene(tmp_path) as scene:
            await scene.step(1)
            await scene.cluster.at(0, AsyncSaver.save, tmp_path / "step-1", wait=False)
            scene.mortal.dying = method
            if method == "update":  # which has replaced the process when the save is asked for
                await scene.step(2)
            for _ in range(2):
                with pytest.raises(StateLost, match=f"ended during {method}"):
                    await scene.cluster.at(0, AsyncSaver.save_completed)
            assert scene.mortal.trainer.num_updates == 1 + (method == "update"), "it has been replaced already"
            await scene.cluster.at(0, AsyncSaver.save, tmp_path / "step-2", wait=False)
            assert await scene.cluster.at(0, AsyncSaver.save_completed)

    asyncio.run(run())


@pytest.mark.parametrize("method", ["send", "update"])
def test_a_broadcast_of_a_new_trainer_has_a_new_group(method: str, tmp_path: Path) -> None:
    async def run() -> None:
        async with open_scene(tmp_path, broadcasts=True) as scene:
            generators = [FakeGenerator(), FakeGenerator()]
            cluster = InlineCluster[Generator](generators)
            router = Router(cluster, max_wait_s=0.01)
            publisher = Publisher(
                trainers=scene.cluster,
                generators=cluster,
                router=router,
                journal=scene.journal,
                transport=Transport(concurrent=True),
            )
            running = asyncio.create_task(router.run())
            await publisher.publish(0)
            scene.mortal.dying = method
            for step in (1, 2):
                await scene.cluster.scatter(Trainer.update, [batch()], OBJECTIVE)
                await publisher.publish(step)
            published = [(event.version, event.step) for event in scene.events(WeightsPublished)]
            assert published[0] == (0, 0) and published[1][0] > 1, "a gap in the versions makes a new group"
            assert published[1:] == [(published[1][0], 1), (published[1][0] + 1, 2)]
            assert all(generator.received[-1] == published[-1][0] for generator in generators)
            running.cancel()

    asyncio.run(run())
