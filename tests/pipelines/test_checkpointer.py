"""Asynchronous checkpoints: complete or absent, and never two at once."""

import asyncio
import dataclasses
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from roll.algorithms.credit import AlgorithmState
from roll.algorithms.recipe import Objective
from roll.checkpoint import Checkpoints
from roll.cluster.inline import InlineCluster
from roll.data.templates import character_tokenizer
from roll.engines.base import Trainer
from roll.engines.fake import FakeTrainer
from roll.errors import RunStopped, WorkerDied
from roll.journal.events import CheckpointSaved
from roll.journal.store import Journal
from roll.pipelines.checkpointer import Checkpointer
from roll.rollout.inflight import SchedulerState
from roll.serving.recovery import RecoveringCluster, RecoveryPolicy
from roll.types import Spec
from tests.engines.models import batch_of


class Slow(FakeTrainer):
    """Copies at once; writes the copy when `go` is set, or fails if the disk is `full`."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()
        self.full = False
        self._copy: tuple[Path, int] | None = None

    async def save(self, path: Path, *, resumable: bool = True, wait: bool = True) -> None:
        assert not wait and self._copy is None, "one at a time"
        self._copy = path, self.num_updates

    async def save_completed(self) -> bool:
        if not self.go.is_set() or self._copy is None:
            return False
        (path, num_updates), self._copy = self._copy, None
        if self.full:
            raise OSError(28, "No space left on device")
        (path / "model.safetensors").write_text(str(num_updates))
        return True


class LateStorage(Checkpoints):
    """Syncs nothing before `go` is set."""

    go = threading.Event()

    def _add_checksums(self, directory: Path) -> None:
        self.activity = "syncing model.safetensors to disk"
        assert self.go.wait(600)
        super()._add_checksums(directory)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with closing(Journal(tmp_path / "journal.db")) as journal:
        yield journal


EMPTY = SchedulerState(mixture={})


def build(tmp_path: Path, trainer: Slow, journal: Journal) -> Checkpointer:
    return Checkpointer(
        directory=tmp_path,
        checkpoints=Checkpoints(tmp_path / "checkpoints", keep=2),
        trainers={"": InlineCluster[Trainer]([trainer])},
        critic=None,
        journal=journal,
        tokenizer=character_tokenizer("01"),
        best="validation/reward",
        async_save=True,
    )


async def first(checkpointer: Checkpointer, trainer: Slow) -> None:
    """Write a checkpoint of step 1."""
    trainer.go.set()
    await checkpointer.save(1, EMPTY, {"": AlgorithmState()}, {})
    await checkpointer.finish()
    trainer.go.clear()


def test_steps_continue_while_a_checkpoint_is_written(tmp_path: Path, journal: Journal) -> None:
    async def run() -> None:
        trainer = Slow()
        checkpointer = build(tmp_path, trainer, journal)
        await first(checkpointer, trainer)
        await checkpointer.save(2, EMPTY, {"": AlgorithmState()}, {})
        trainer.num_updates = 7  # after the copy
        assert checkpointer.checkpoints.steps() == [1]
        trainer.go.set()
        await checkpointer.finish()
        assert checkpointer.checkpoints.steps() == [1, 2]
        assert (tmp_path / "checkpoints/step-2/model.safetensors").read_text() == "0"
        assert [entry.event.step for entry in journal.events(CheckpointSaved)] == [1, 2]

    asyncio.run(run())


def test_a_run_would_resume_from_the_first_checkpoint_already_while_it_is_written(
    tmp_path: Path, journal: Journal
) -> None:
    async def run() -> None:
        trainer = Slow()
        checkpointer = build(tmp_path, trainer, journal)
        assert checkpointer.checkpoints.resume_step() is None
        for step in (1, 2):
            trainer.go.clear()
            await checkpointer.save(step, EMPTY, {"": AlgorithmState()}, {})
            assert checkpointer.checkpoints.resume_step() == 1, "step 2 is not complete"
            trainer.go.set()
            await checkpointer.finish()
            assert checkpointer.checkpoints.resume_step() == step

    asyncio.run(run())


def test_a_crash_while_a_checkpoint_is_written_leaves_the_one_before(tmp_path: Path, journal: Journal) -> None:
    async def run() -> None:
        trainer = Slow()
        checkpointer = build(tmp_path, trainer, journal)
        await first(checkpointer, trainer)
        await checkpointer.save(2, EMPTY, {"": AlgorithmState()}, {})
        leftovers = [path.name for path in (tmp_path / "checkpoints").iterdir() if path.name.startswith(".tmp-")]
        assert leftovers, "the save was in progress"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(run())
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=2)
    checkpoints.recover()
    assert checkpoints.steps() == [1]
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-1"]
    assert (tmp_path / "checkpoints/step-1/state.json").is_file()


def test_a_failed_write_is_reported_and_the_next_one_is_tried(
    tmp_path: Path, journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        trainer = Slow()
        checkpointer = build(tmp_path, trainer, journal)
        await first(checkpointer, trainer)
        trainer.full = True
        trainer.go.set()
        await checkpointer.save(2, EMPTY, {"": AlgorithmState()}, {})
        with pytest.raises(RunStopped, match=r"step-2: .*No space left.*the previous one is intact"):
            await checkpointer.finish()  # at the end of a run the last checkpoint has to exist
        assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-1"]
        trainer.full = False
        await checkpointer.save(3, EMPTY, {"": AlgorithmState()}, {})
        await checkpointer.finish()
        assert checkpointer.checkpoints.steps() == [1, 3]

    asyncio.run(run())
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "step-2: could not be written" in line and "the run continues" in line


def test_a_save_waits_for_the_one_before(tmp_path: Path, journal: Journal) -> None:
    async def run() -> None:
        trainer = Slow()
        checkpointer = build(tmp_path, trainer, journal)
        await checkpointer.save(1, EMPTY, {"": AlgorithmState()}, {})
        later = asyncio.create_task(checkpointer.save(2, EMPTY, {"": AlgorithmState()}, {}))
        await asyncio.sleep(0.05)
        assert not later.done()
        trainer.go.set()
        await later
        await checkpointer.finish()
        assert checkpointer.checkpoints.steps() == [1, 2]

    asyncio.run(run())


class Mortal(InlineCluster[Trainer]):
    """A trainer that may die in a call of `save_completed`, and can be replaced."""

    def __init__(self) -> None:
        super().__init__([Slow()])
        self.dying = False

    async def at(self, rank: int, method: Any, *args: Any, **kwargs: Any) -> Any:
        if self.dying and method.__name__ == "save_completed":
            raise WorkerDied("actor_train 0: ended")
        return await super().at(rank, method, *args, **kwargs)

    async def replace(self, rank: int) -> None:
        trainer = Slow()
        trainer.go.set()
        self._workers, self.dying = (trainer,), False


@pytest.mark.parametrize("changed", [False, True])
def test_a_checkpoint_that_is_lost_with_its_trainer_is_repeated_if_the_state_is_the_same(
    changed: bool, tmp_path: Path, journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        mortal = Mortal()
        trainers = RecoveringCluster[Trainer](mortal, role="actor_train", snapshots=tmp_path / "state")
        trainers.policy = RecoveryPolicy(
            journal=journal, max_replacements=1, hang_timeout_s=100.0, snapshot_s=100.0, notice=print
        )
        checkpointer = dataclasses.replace(build(tmp_path, Slow(), journal), trainers={"": trainers})
        await checkpointer.save(1, EMPTY, {"": AlgorithmState()}, {})
        if changed:
            await trainers.at(0, Trainer.update, batch_of([[1, 2]]), Objective(loss=Spec("clipped")))
        mortal.dying = True
        await checkpointer.finish()
        assert checkpointer.checkpoints.steps() == ([] if changed else [1])

    asyncio.run(run())
    assert ("the checkpoint of step 1 is lost" in caplog.text) == changed


def test_a_step_does_not_wait_for_storage_that_answers_late(tmp_path: Path, journal: Journal) -> None:
    async def run() -> None:
        trainer = FakeTrainer()
        checkpointer = dataclasses.replace(
            build(tmp_path, Slow(), journal),
            trainers={"": InlineCluster[Trainer]([trainer])},
            async_save=False,
            checkpoints=LateStorage(tmp_path / "checkpoints", keep=2),
        )
        await checkpointer.save(1, EMPTY, {"": AlgorithmState()}, {})
        trainer.num_updates = 7  # the next step
        assert checkpointer.checkpoints.steps() == []
        later = asyncio.create_task(checkpointer.save(2, EMPTY, {"": AlgorithmState()}, {}))
        while "syncing" not in checkpointer.describe_wait():
            await asyncio.sleep(0.01)
        assert not later.done()  # two checkpoints at once would only be slower
        LateStorage.go.set()
        await later
        await checkpointer.finish()
        assert checkpointer.checkpoints.steps() == [1, 2]

    asyncio.run(asyncio.wait_for(run(), 600))


def test_a_failing_run_completes_the_checkpoint_it_was_writing(tmp_path: Path, journal: Journal) -> None:
    async def run() -> None:
        checkpointer = dataclasses.replace(
            build(tmp_path, Slow(), journal),
            trainers={"": InlineCluster[Trainer]([FakeTrainer()])},
            async_save=False,
        )
        await checkpointer.save(1, EMPTY, {"": AlgorithmState()}, {})
        await checkpointer.settle()
        assert checkpointer.checkpoints.steps() == [1]

    asyncio.run(run())
