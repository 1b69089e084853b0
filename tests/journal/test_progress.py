import sqlite3
import time
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from roll.journal.batch import Batch, Keep, Stock
from roll.journal.database import connect
from roll.journal.events import Released
from roll.journal.records import Chunk
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


def test_what_was_sampled_so_far_comes_back_in_order(tmp_path: Path):
    journal = Journal(tmp_path / "journal.db")
    given = [chunk(4, 0, 1), chunk(4, 0, 3), chunk(4, 1, 11), chunk(5, 0, 21)]
    for index in (2, 0, 3, 1):
        journal.note(given[index])
    assert plain(journal.progress(4)) == plain(given[:3])
    assert plain(journal.progress()) == plain(given)
    journal.close()
    assert plain(Reader(tmp_path / "journal.db").progress(5)) == plain(given[3:])


def test_progress_vanishes_with_the_trajectory_that_has_it_all(tmp_path: Path):
    for flushed in (False, True):  # in one batch with what is kept, or on disk before it
        journal = Journal(tmp_path / f"{flushed}.db")
        journal.note(chunk(4, 0))
        journal.note(chunk(4, 1))
        if flushed:
            journal.flush()
        journal.keep(4, ended(0))
        journal.note(chunk(4, 0, attempt=1))  # it is made anew
        assert plain(journal.progress(4)) == plain([chunk(4, 0, attempt=1), chunk(4, 1)])
        journal.keep(4, ended(0))
        assert plain(journal.progress(4)) == plain([chunk(4, 1)])


def test_a_process_that_goes_on_ends_what_another_began(tmp_path: Path):
    first = Journal(tmp_path / "journal.db")
    first.note(chunk(4, 0))
    first.close()
    second = Journal(tmp_path / "journal.db")
    second.note(replace(chunk(4, 0), version=8))
    assert [each.version for each in second.progress(4)] == [3, 8]
    second.keep(4, ended(0))
    assert second.progress(4) == []


def test_no_reader_ever_sees_a_trajectory_beside_its_progress(tmp_path: Path):
    journal = Journal(tmp_path / "journal.db")
    other = sqlite3.connect(tmp_path / "journal.db")
    query = 'SELECT COUNT(*) FROM trajectories JOIN progress USING ("group", sibling)'
    for group in range(500):
        journal.note(chunk(group, 0))
        if group % 3 == 0:
            journal.flush()
        journal.keep(group, ended(0))
        journal.record(Released(step=group))
        assert other.execute(query).fetchone() == (0,)
    journal.close()
    assert other.execute("SELECT COUNT(*) FROM progress").fetchone() == (0,)


def test_progress_reaches_the_file_by_itself(tmp_path: Path):
    journal, reader = Journal(tmp_path / "journal.db"), Reader(tmp_path / "journal.db")
    journal.note(chunk(4, 0))
    deadline = time.monotonic() + 20
    while not reader.progress(4) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert plain(reader.progress(4)) == plain([chunk(4, 0)])


def test_progress_of_what_ends_with_the_next_batch_is_never_written(tmp_path: Path):
    connection = connect(tmp_path / "journal.db", write=True)
    stock, written = Stock(connection), list[str]()
    connection.set_trace_callback(written.append)
    for items in ([chunk(4, 0), chunk(5, 0)], [Keep(id=1, group=4, trajectory=ended(0), ended=0.0)]):
        batch = Batch(stock)
        for item in items:
            batch.add(item)
        batch.write(connection)
    assert sum("INSERT INTO progress" in statement for statement in written) == 1  # of group 5
    assert not any("DELETE FROM progress" in statement for statement in written)
    assert connection.execute("SELECT noted FROM trajectories").fetchone() == (len(chunk(4, 0).ids),)
