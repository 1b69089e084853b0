"""Damaged files of a run: named in one line, never overwritten, and what is intact is used."""

import os
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from roll.journal.events import RolledBack, WeightsPublished
from roll.journal.store import Reader

pytestmark = pytest.mark.slow


def flip(path: Path, position: int = -50) -> None:
    """Invert one bit of a file."""
    content = bytearray(path.read_bytes())
    content[position] ^= 4
    path.write_bytes(content)


def contents(run: Path) -> dict[str, bytes]:
    """All files but logs, locks and the index of the journal."""
    ignored = (".lock", "controller.log", "journal.db-shm", "journal.db-wal")
    files = (path for path in run.rglob("*") if path.is_file() and path.name not in ignored)
    return {str(path.relative_to(run)): path.read_bytes() for path in files}


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "state.json", "tokenizer.json"])
def test_a_run_continues_from_the_newest_intact_checkpoint_with_the_same_weights(
    roll: Callable, made: Path, name: str
) -> None:
    newest = made / "checkpoints" / "step-4"
    weights = (newest / "model.safetensors").read_bytes()
    flip(newest / name)
    outcome = roll("resume", "runs/tiny", "steps=5")
    assert outcome.code == 0, outcome
    assert f"runs/tiny/checkpoints/step-4: damaged: {name}: its content has changed" in outcome.out
    assert (made / "checkpoints" / "step-4" / "model.safetensors").read_bytes() == weights  # trained again, bit-equal
    assert (made / "checkpoints" / "damaged-step-4" / name).is_file()
    with closing(Reader(made / "journal.db")) as reader:
        assert [entry.event.to_step for entry in reader.events(RolledBack)] == [3]
        versions = [entry.event.version for entry in reader.events(WeightsPublished)]
    assert versions == list(range(len(versions)))  # they only grow


def test_without_an_intact_checkpoint_nothing_is_overwritten(roll: Callable, made: Path) -> None:
    os.truncate(made / "checkpoints" / "step-3" / "model.safetensors", 100)
    (made / "checkpoints" / "step-4" / "state.json").unlink()
    before = contents(made)
    for command in (("resume", "runs/tiny", "steps=5"), ("train", "run.yaml", "--resume", "steps=5")):
        line = roll(*command, "model={path: runs/tiny-sft/model}").fault(2)
        assert line.startswith("runs/tiny/checkpoints/step-4: damaged: state.json: missing; none of the 2")
    assert contents(made) == before


def test_a_checkpoint_without_checksums_is_resumed_with_a_warning(roll: Callable, made: Path) -> None:
    (made / "checkpoints" / "step-4" / "checksums.json").unlink()
    outcome = roll("resume", "runs/tiny", "steps=5")
    assert outcome.code == 0, outcome
    assert "runs/tiny/checkpoints/step-4: has no checksums.json, so its files cannot be checked" in outcome.out


def test_the_evaluation_of_a_damaged_model_is_refused(roll: Callable, made: Path) -> None:
    newest = made / "checkpoints" / "step-4"
    assert roll("eval", "run.yaml", "model={path: runs/tiny/checkpoints/step-4}").code == 0
    flip(newest / "model.safetensors")
    line = roll("eval", "run.yaml", "model={path: runs/tiny/checkpoints/step-4}").fault(2)
    assert "step-4 is damaged: model.safetensors: its content has changed" in line


def test_a_journal_without_its_wal_is_refused(roll: Callable, child: Callable, folder: Path) -> None:
    run = folder / "runs" / "tiny"
    process = child("train", "run.yaml", "steps=500", "validation.tasks=[]")
    process.wait_for(run / "checkpoints" / "step-3")
    process.process.kill()
    process.wait(600)
    assert (run / "journal.db-wal").stat().st_size > 0
    shutil.move(run / "journal.db-wal", folder / "wal")
    before = contents(run)
    for command in (("resume", "runs/tiny"), ("report", "runs/tiny"), ("samples", "runs/tiny")):
        line = roll(*command).fault(2)
        assert line.startswith("runs/tiny/journal.db: empty") and "journal.db-wal is missing" in line, line
    assert contents(run) == before
    shutil.move(folder / "wal", run / "journal.db-wal")
    assert roll("report", "runs/tiny").code == 0


def test_an_older_copy_of_the_journal_is_refused(roll: Callable, made: Path, folder: Path) -> None:
    shutil.copy(made / "journal.db", folder / "old.db")
    assert roll("resume", "runs/tiny", "steps=5").code == 0
    shutil.copy(folder / "old.db", made / "journal.db")
    before = contents(made / "checkpoints")
    line = roll("resume", "runs/tiny", "steps=6").fault(2)
    assert line.startswith("runs/tiny/journal.db: ends at event ") and "before event" in line
    assert contents(made / "checkpoints") == before
    assert (made / "journal.db").read_bytes() == (folder / "old.db").read_bytes()
