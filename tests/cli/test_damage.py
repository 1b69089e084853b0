"""Damaged files of a run: named in one line, never overwritten, and what is intact is used."""

import os
import random
import shutil
import sqlite3
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


MOMENTS = "optimizer/rank-00000-00001.safetensors"


def contents(run: Path) -> dict[str, bytes]:
    """All files but logs, locks and the index of the journal."""
    ignored = (".lock", "controller.log", "journal.db-shm", "journal.db-wal")
    files = (path for path in run.rglob("*") if path.is_file() and path.name not in ignored)
    return {str(path.relative_to(run)): path.read_bytes() for path in files}


@pytest.mark.parametrize("name", ["model.safetensors", MOMENTS, "state.json", "tokenizer.json"])
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


def test_checkpoints_of_another_run_are_refused(roll: Callable, made: Path) -> None:
    with closing(sqlite3.connect(made / "journal.db")) as connection, connection:
        connection.execute("UPDATE events SET time = time - 1 WHERE id = 1")  # now it is the journal of another run
    before = contents(made)
    line = roll("resume", "runs/tiny", "steps=5").fault(2)
    assert line.startswith("runs/tiny/journal.db: the checkpoint of step 4 is of another run")
    assert contents(made) == before
    assert "checkpoints match the journal: step-4 is of another run" in roll("verify", "runs/tiny").out


PAGE = 16 * 1024


def damage_page(path: Path, table: str) -> None:
    """Flip a byte in the header of a page with rows of this table, so that SQLite cannot read the page."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (page,) = connection.execute(f"SELECT rootpage FROM sqlite_master WHERE name = '{table}'").fetchone()
    content = bytearray(path.read_bytes())
    start = (page - 1) * PAGE
    if content[start] == 5:  # an inner page: take the first leaf below it
        cell = int.from_bytes(content[start + 12 : start + 14], "big")
        start = (int.from_bytes(content[start + cell : start + cell + 4], "big") - 1) * PAGE
    assert content[start] == 13, "a leaf"
    content[start] ^= 4
    path.write_bytes(content)


@pytest.mark.parametrize("table", ["events", "bodies", "trajectories"])
def test_a_damaged_page_of_the_journal_is_named_and_the_rest_is_shown(roll: Callable, made: Path, table: str) -> None:
    assert roll("resume", "runs/tiny", "steps=40", "checkpoint.every=40").code == 0  # more than one page of events
    intact = len(roll("samples", "runs/tiny", "--last", "10000", "--json").out.splitlines())
    damage_page(made / "journal.db", table)
    before = contents(made)
    line = roll("resume", "runs/tiny", "steps=41").fault(2)
    assert line.startswith("runs/tiny/journal.db: the journal is damaged (")
    samples = roll("samples", "runs/tiny", "--last", "10000", "--json")
    assert samples.code == 0 and 0 < len(samples.out.splitlines()) <= intact
    if table != "trajectories":
        assert len(samples.out.splitlines()) == intact  # their table is whole
    if table != "events":
        assert samples.err.startswith("runs/tiny/journal.db: damaged (") and f"{table} 0-" in samples.err, samples.err
    report = roll("report", "runs/tiny")
    assert "Traceback" not in report.err and report.code in (0, 2)
    assert contents(made) == before


@pytest.mark.parametrize("share", [0.01, 0.5, 0.95])
def test_a_truncated_journal_is_one_line(roll: Callable, made: Path, share: float) -> None:
    path = made / "journal.db"
    os.truncate(path, int(path.stat().st_size * share))
    before = contents(made)
    line = roll("resume", "runs/tiny", "steps=5").fault(2)
    assert line.startswith("runs/tiny/journal.db: ")
    for command in ("report", "samples"):
        outcome = roll(command, "runs/tiny")
        assert outcome.code in (0, 2) and len(outcome.err.splitlines()) <= 1, outcome
        assert share > 0.9 or outcome.err.startswith("runs/tiny/journal.db: ")  # its last pages may not be needed
    assert contents(made) == before


def test_a_flipped_byte_anywhere_in_the_journal_never_ends_in_a_traceback(roll: Callable, made: Path) -> None:
    path = made / "journal.db"
    whole, seeds = path.read_bytes(), random.Random(0)
    for _ in range(40):
        content = bytearray(whole)
        content[seeds.randrange(len(content))] ^= 1 << seeds.randrange(8)
        path.write_bytes(content)
        for command in ("report", "samples"):
            assert roll(command, "runs/tiny").code in (0, 2)  # any other error would be raised here
        assert path.read_bytes() == bytes(content)


def test_a_state_of_another_optimizer_or_release_is_refused_before_processes_start(roll: Callable, made: Path) -> None:
    before = contents(made)
    line = roll("resume", "runs/tiny", "steps=5", "actor_train.optimizer.kind=sgd").fault(2)
    assert "step-4/optimizer/state.json: state of the optimizer adamw (the run has sgd); set optimizer.kind" in line
    assert contents(made) == before
    newest = made / "checkpoints" / "step-4"
    shutil.rmtree(newest / "optimizer")
    (newest / "checksums.json").unlink()
    before = contents(made)
    line = roll("resume", "runs/tiny", "steps=5").fault(2)
    assert "step-4/optimizer/state.json: no such file, so the optimizer's state is of an earlier release" in line
    assert contents(made) == before
