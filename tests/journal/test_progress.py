import sqlite3
import time
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from roll.journal.batch import StoreTrajectory, WriteBatch, WriterState
from roll.journal.database import connect
from roll.journal.events import SlotsReleased, TokensGenerated
from roll.journal.records import Chunk, JournalEntry
from roll.journal.store import Journal, Reader
from roll.types import Segment, Status, Task, Trajectory

NAMES = [field.name for field in fields(Chunk)]


def chunk(group: int, sibling: int, first: int = 1, *, attempt: int = 0) -> Chunk:
    return Chunk(
        group=group,
        sibling=sibling,
        attempt=attempt,
        turn=2,
        context=0xFFFFFFFF,
        ids=np.array([first, first + 1], np.int32),
        logprobs=np.array([-0.1, -0.5], np.float32),
        version=3,
    )


def plain(chunks: Sequence[Chunk]) -> list[list[Any]]:
    return [
        [value.tolist() if isinstance(value, np.ndarray) else value for value in map(partial(getattr, each), NAMES)]
        for each in chunks
    ]


def ended(sibling: int) -> Trajectory:
    return Trajectory(
        task=Task(id="t", domain="math"), sibling=sibling, segments=(Segment(turns=()),), status=Status.ENV_FAILED
    )


def test_progress_is_read_back_in_order(tmp_path: Path):
    journal = Journal(tmp_path / "journal.db")
    given = [chunk(4, 0, 1), chunk(4, 0, 3), chunk(4, 1, 11), chunk(5, 0, 21)]
    for index in (2, 0, 3, 1):
        journal.record_progress(given[index])
    assert plain(journal.progress(4)) == plain(given[:3])
    assert plain(journal.progress()) == plain(given)
    journal.close()
    assert plain(Reader(tmp_path / "journal.db").progress(5)) == plain(given[3:])


def test_progress_is_deleted_when_its_trajectory_is_stored(tmp_path: Path):
    for flushed in (False, True):  # in one batch with what is kept, or on disk before it
        journal = Journal(tmp_path / f"{flushed}.db")
        journal.record_progress(chunk(4, 0))
        journal.record_progress(chunk(4, 1))
        if flushed:
            journal.flush()
        journal.record_trajectory(4, ended(0))
        journal.record_progress(chunk(4, 0, attempt=1))  # the next attempt
        assert plain(journal.progress(4)) == plain([chunk(4, 0, attempt=1), chunk(4, 1)])
        journal.record_trajectory(4, ended(0))
        assert plain(journal.progress(4)) == plain([chunk(4, 1)])


def test_a_resumed_process_can_end_an_attempt_of_an_earlier_one(tmp_path: Path):
    first = Journal(tmp_path / "journal.db")
    first.record_progress(chunk(4, 0))
    first.close()
    second = Journal(tmp_path / "journal.db")
    second.record_progress(replace(chunk(4, 0), version=8))
    assert [each.version for each in second.progress(4)] == [3, 8]
    second.record_trajectory(4, ended(0))
    assert second.progress(4) == []


def test_no_reader_ever_sees_both_a_trajectory_and_its_progress(tmp_path: Path):
    journal = Journal(tmp_path / "journal.db")
    other = sqlite3.connect(tmp_path / "journal.db")
    query = 'SELECT COUNT(*) FROM trajectories JOIN progress USING ("group", sibling)'
    for group in range(500):
        journal.record_progress(chunk(group, 0))
        if group % 3 == 0:
            journal.flush()
        journal.record_trajectory(group, ended(0))
        journal.record(SlotsReleased(step=group))
        assert other.execute(query).fetchone() == (0,)
    journal.close()
    assert other.execute("SELECT COUNT(*) FROM progress").fetchone() == (0,)


def test_progress_reaches_the_file_without_a_flush(tmp_path: Path):
    journal, reader = Journal(tmp_path / "journal.db"), Reader(tmp_path / "journal.db")
    journal.record_progress(chunk(4, 0))
    deadline = time.monotonic() + 120
    while not reader.progress(4) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert plain(reader.progress(4)) == plain([chunk(4, 0)])


def test_progress_of_an_attempt_that_ends_in_the_next_batch_is_never_written(tmp_path: Path):
    connection = connect(tmp_path / "journal.db", write=True)
    stock, written = WriterState(connection), list[str]()
    connection.set_trace_callback(written.append)
    for items in ([chunk(4, 0), chunk(5, 0)], [StoreTrajectory(id=1, group=4, trajectory=ended(0), ended=0.0)]):
        batch = WriteBatch(stock)
        for item in items:
            batch.add(item)
        batch.write(connection)
    assert sum("INSERT INTO progress" in statement for statement in written) == 1  # of group 5
    assert not any("DELETE FROM progress" in statement for statement in written)
    assert connection.execute("SELECT progress_tokens FROM trajectories").fetchone() == (len(chunk(4, 0).ids),)


def test_counted_tokens_are_on_disk_before_or_with_their_count(tmp_path: Path):
    connection = connect(tmp_path / "journal.db", write=True)
    batch = WriteBatch(WriterState(connection))
    batch.add(chunk(4, 0))
    event = TokensGenerated(step=1, tokens=2, unrecorded=0, discarded=0, late=0, bad=0, redispatched=0)
    batch.add(JournalEntry(id=1, time=0.0, event=event))
    batch.write(connection)  # and the process is killed before the next batch
    assert connection.execute("SELECT LENGTH(ids) / 4 FROM progress").fetchall() == [(len(chunk(4, 0).ids),)]
