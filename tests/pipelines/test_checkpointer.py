"""Checkpoints of trainers that write while they go on: whole or not there, and never two at once."""

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from roll.algorithms.credit import Memory
from roll.checkpoint import Checkpoints
from roll.cluster.inline import InlineCluster
from roll.data.templates import character_tokenizer
from roll.engines.base import Trainer
from roll.engines.fake import FakeTrainer
from roll.errors import RunStopped
from roll.journal.events import Checkpointed
from roll.journal.store import Journal
from roll.pipelines.checkpointer import Keeper


class Slow(FakeTrainer):
    """Has a copy at once; writes it when it is let go, or fails to."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()
        self.full = False
        self._copy: tuple[Path, int] | None = None

    async def save(self, path: Path, *, resumable: bool = True, wait: bool = True) -> None:
        assert not wait and self._copy is None, "one at a time"
        self._copy = path, self.num_updates

    async def written(self) -> bool:
        if not self.go.is_set() or self._copy is None:
            return False
        (path, held), self._copy = self._copy, None
        if self.full:
            raise OSError(28, "No space left on device")
        (path / "model.safetensors").write_text(str(held))
        return True


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with closing(Journal(tmp_path / "journal.db")) as found:
        yield found


def keeper(tmp_path: Path, trainer: Slow, journal: Journal) -> Keeper:
    return Keeper(
        directory=tmp_path,
        checkpoints=Checkpoints(tmp_path / "checkpoints", keep=2),
        trainers=InlineCluster[Trainer]([trainer]),
        critic=None,
        journal=journal,
        tokenizer=character_tokenizer("01"),
        best="validation/reward",
        aside=True,
    )


async def first(kept: Keeper, trainer: Slow) -> None:
    """A checkpoint of step 1 that is on disk."""
    trainer.go.set()
    await kept.save(1, {}, Memory(), {})
    await kept.finish()
    trainer.go.clear()


def test_steps_go_on_while_a_checkpoint_is_written(tmp_path: Path, journal: Journal) -> None:
    async def run() -> None:
        trainer = Slow()
        kept = keeper(tmp_path, trainer, journal)
        await first(kept, trainer)
        await kept.save(2, {}, Memory(), {})
        trainer.num_updates = 7  # after the copy
        assert kept.checkpoints.steps() == [1]
        trainer.go.set()
        await kept.finish()
        assert kept.checkpoints.steps() == [1, 2]
        assert (tmp_path / "checkpoints/step-2/model.safetensors").read_text() == "0"
        assert [entry.event.step for entry in journal.events(Checkpointed)] == [1, 2]

    asyncio.run(run())


def test_a_crash_while_a_checkpoint_is_written_leaves_the_one_before(tmp_path: Path, journal: Journal) -> None:
    async def run() -> None:
        trainer = Slow()
        kept = keeper(tmp_path, trainer, journal)
        await first(kept, trainer)
        await kept.save(2, {}, Memory(), {})
        leftovers = [path.name for path in (tmp_path / "checkpoints").iterdir() if path.name.startswith(".tmp-")]
        assert leftovers, "it was under way"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(run())
    found = Checkpoints(tmp_path / "checkpoints", keep=2)
    found.recover()
    assert found.steps() == [1]
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-1"]
    assert (tmp_path / "checkpoints/step-1/state.json").is_file()


def test_what_cannot_be_written_is_said_at_the_next_save_and_leaves_the_one_before(
    tmp_path: Path, journal: Journal
) -> None:
    async def run() -> None:
        trainer = Slow()
        kept = keeper(tmp_path, trainer, journal)
        await first(kept, trainer)
        trainer.full = True
        await kept.save(2, {}, Memory(), {})
        trainer.go.set()
        with pytest.raises(RunStopped, match="No space left"):
            await kept.save(3, {}, Memory(), {})
        assert kept.checkpoints.steps() == [1]

    asyncio.run(run())


def test_a_save_waits_for_the_one_before(tmp_path: Path, journal: Journal) -> None:
    async def run() -> None:
        trainer = Slow()
        kept = keeper(tmp_path, trainer, journal)
        await kept.save(1, {}, Memory(), {})
        later = asyncio.create_task(kept.save(2, {}, Memory(), {}))
        await asyncio.sleep(0.05)
        assert not later.done()
        trainer.go.set()
        await later
        await kept.finish()
        assert kept.checkpoints.steps() == [1, 2]

    asyncio.run(run())
