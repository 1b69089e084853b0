import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roll.errors import ConfigError
from roll.journal.events import Admitted, GroupReady, Published, Released, RolledBack, Taken
from roll.journal.store import Journal, Reader, Wanted
from roll.types import Finish, Message, Score, Segment, Status, Task, Trajectory, Turn

ROOT = Path(__file__).parents[2]


def attempt(sibling: int = 0, *, status: Status = Status.FINISHED, domain: str = "math", **task: Any) -> Trajectory:
    turn = Turn(
        observation=np.array([5, 6], np.int32),
        sampled=np.array([7, 8, 9], np.int32),
        sampler_logprobs=np.array([-0.5, -0.25, -0.125], np.float32),
        versions=np.array([3, 3, 4], np.int32),
        finish=Finish.STOP,
        reward=0.25,
        waited_s=1.5,
    )
    return Trajectory(
        task=Task(id="t-1", domain=domain, messages=(Message("user", "1+1="),), answer="2", seed=7, **task),
        sibling=sibling,
        segments=(Segment(turns=(turn, turn)), Segment(turns=(turn,), agent="other")),
        status=status,
        score=Score(1.0, {"format": 0.5}),
        metrics={"success": 1.0},
    )


def start_python(code: str, directory: Path, **options: Any) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{Path(__file__).parent}"}
    return subprocess.Popen(
        [sys.executable, "-c", code], cwd=directory, env=environment, stdout=subprocess.PIPE, text=True, **options
    )


def test_events_come_back_typed_in_order_and_by_kind(tmp_path: Path):
    journal = Journal(tmp_path / "journal.db")
    first = journal.record(GroupReady(group=1))
    journal.record(Taken(step=1, groups=(1, 2)))
    journal.record(GroupReady(group=3))
    assert [entry.event for entry in journal.events()] == [
        GroupReady(group=1),
        Taken(step=1, groups=(1, 2)),
        GroupReady(group=3),
    ]
    assert [entry.event.group for entry in journal.events(GroupReady, after=first)] == [3]
    assert [entry.id for entry in journal.events()] == [1, 2, 3] and journal.position() == 3
    journal.close()


def test_step_version_and_group_are_columns(tmp_path: Path):
    journal = Journal(tmp_path / "journal.db")
    journal.record(Published(version=7, step=6, digest="x"))
    journal.record(Admitted(group=9, task="t", domain="math", birth=7))
    journal.close()
    rows = (
        sqlite3.connect(tmp_path / "journal.db").execute('SELECT kind, step, version, "group" FROM events').fetchall()
    )
    assert rows == [("Published", 6, 7, None), ("Admitted", None, None, 9)]


def test_a_journal_is_continued_where_it_ended(tmp_path: Path):
    for group in (1, 2):
        journal = Journal(tmp_path / "journal.db")
        journal.record(GroupReady(group=group))
        journal.close()
    reader = Reader(tmp_path / "journal.db")
    assert [(entry.id, entry.event) for entry in reader.events()] == [
        (1, GroupReady(group=1)),
        (2, GroupReady(group=2)),
    ]
    assert reader.position() == 2


def test_a_trajectory_comes_back_to_the_bit(tmp_path: Path):
    journal = Journal(tmp_path / "journal.db")
    given = attempt(2, metadata={"level": 3, "tags": ["a"]})
    journal.keep(11, given)
    kept = next(journal.trajectories())
    found = kept.trajectory
    assert found is not None
    assert (kept.group, kept.sibling, kept.reward, kept.step) == (11, 2, 1.75, None)  # 1.0 and three turns of 0.25
    assert (found.task, found.score, found.status, found.metrics) == (
        given.task,
        given.score,
        given.status,
        given.metrics,
    )
    assert [segment.agent for segment in found.segments] == ["policy", "other"]
    for row in ("ids", "trained", "sampler_logprobs", "versions"):
        for one, other in zip(found.segments, given.segments, strict=True):
            assert getattr(one, row).dtype == getattr(other, row).dtype
            np.testing.assert_array_equal(getattr(one, row), getattr(other, row))
    assert found.turns[0].finish is Finish.STOP and found.turns[0].waited_s == 1.5


def test_a_failure_has_no_reward(tmp_path: Path):
    journal = Journal(tmp_path / "journal.db")
    journal.keep(1, attempt(status=Status.REWARD_FAILED))
    assert next(journal.trajectories()).reward is None


def test_a_task_that_cannot_be_recorded_is_named(tmp_path: Path):
    journal = Journal(tmp_path / "journal.db")
    with pytest.raises(ConfigError, match=r"task 't-1': .*got a complex"):
        journal.keep(1, attempt(metadata={"z": 1j}))
    with pytest.raises(ConfigError, match=r"task 't-1': .*64 bits"):
        journal.keep(1, attempt(metadata={"big": 2**70}))


def test_trajectories_are_found_by_step_domain_status_and_number(tmp_path: Path):
    journal = Journal(tmp_path / "journal.db")
    journal.keep(1, attempt(0))
    journal.keep(1, attempt(1, status=Status.TRUNCATED))
    journal.keep(2, attempt(0, domain="code"))
    journal.record(Taken(step=4, groups=(1,)))

    def found(**wanted: Any) -> list[tuple[int, int]]:
        return [(kept.group, kept.sibling) for kept in journal.trajectories(Wanted(**wanted))]

    assert found() == [(1, 0), (1, 1), (2, 0)]
    assert found(step=4) == [(1, 0), (1, 1)]
    assert found(domain="code") == found(group=2) == [(2, 0)]
    assert found(status=Status.TRUNCATED) == [(1, 1)]
    assert found(last=2) == [(1, 1), (2, 0)]


def test_only_the_attempt_that_replaced_a_failed_one_counts_as_trained(tmp_path: Path):
    journal = Journal(tmp_path / "journal.db")
    journal.keep(1, attempt(0, status=Status.ENV_FAILED))
    journal.keep(1, attempt(0))
    journal.record(Taken(step=2, groups=(1,)))
    assert [(kept.status, kept.step) for kept in journal.trajectories()] == [
        (Status.ENV_FAILED, None),
        (Status.FINISHED, 2),
    ]


def test_a_rollback_undoes_later_steps_and_deletes_nothing(tmp_path: Path):
    journal = Journal(tmp_path / "journal.db")
    for group in (1, 2):
        journal.keep(group, attempt())
        journal.record(Taken(step=group, groups=(group,)))
    journal.record(RolledBack(to_step=1, why="killed"))
    journal.keep(2, attempt())
    journal.record(Taken(step=2, groups=(2,)))
    assert [(kept.group, kept.step, kept.undone) for kept in journal.trajectories()] == [
        (1, 1, False),
        (2, None, True),
        (2, 2, False),
    ]
    assert len(list(journal.events())) == 4


def test_a_group_that_is_taken_again_after_a_rollback_is_trained_again(tmp_path: Path):
    journal = Journal(tmp_path / "journal.db")
    journal.keep(1, attempt())
    journal.record(Taken(step=2, groups=(1,)))
    journal.record(RolledBack(to_step=1, why="killed"))
    journal.record(Taken(step=2, groups=(1,)))
    assert [(kept.step, kept.undone) for kept in journal.trajectories()] == [(2, False)]


def test_pruning_drops_old_tokens_and_keeps_events_and_what_is_not_yet_trained(tmp_path: Path):
    journal = Journal(tmp_path / "journal.db")
    for group in (1, 2, 3):
        journal.keep(group, attempt(0))
        journal.keep(group, attempt(1, status=Status.ENGINE_FAILED))
        journal.keep(group, attempt(1))
        journal.record(Taken(step=group, groups=(group,)))
    journal.keep(4, attempt())
    journal.prune(before_step=3)
    assert [kept.group for kept in journal.trajectories() if kept.trajectory] == [3, 3, 3, 4]
    assert [kept.group for kept in journal.trajectories()] == [1, 1, 1, 2, 2, 2, 3, 3, 3, 4]
    assert len(list(journal.events())) == 3


def test_many_events_reach_the_file_without_a_flush(tmp_path: Path):
    journal = Journal(tmp_path / "journal.db")
    for step in range(1000):
        journal.record(Released(step=step))
    seen = Reader(tmp_path / "journal.db").position()
    assert 700 < seen <= 1000
    journal.flush()
    assert Reader(tmp_path / "journal.db").position() == 1000


def test_another_process_reads_while_the_run_writes(tmp_path: Path):
    journal = Journal(tmp_path / "journal.db")
    journal.record(Released(step=1))
    journal.flush(durable=True)
    code = """
import sys
from pathlib import Path
from roll.journal.store import Reader
reader = Reader(Path("journal.db"))
print(reader.position(), flush=True)
sys.stdin.readline()
print(reader.position(), flush=True)
"""
    other = start_python(code, tmp_path, stdin=subprocess.PIPE)
    assert other.stdin and other.stdout
    assert other.stdout.readline() == "1\n"
    for step in range(2, 600):
        journal.record(Released(step=step))
    journal.flush(durable=True)
    other.stdin.write("\n")
    other.stdin.flush()
    assert other.stdout.readline() == "599\n"
    assert other.wait(timeout=20) == 0
    journal.close()


def test_what_was_flushed_survives_a_kill_and_the_journal_goes_on(tmp_path: Path):
    code = """
import os, signal
from pathlib import Path
from roll.journal.events import Published, Released, Taken
from roll.journal.store import Journal
from test_store import attempt
journal = Journal(Path("journal.db"))
journal.keep(1, attempt())
journal.record(Taken(step=1, groups=(1,)))
journal.flush(durable=True)
journal.record(Released(step=1))
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert start_python(code, tmp_path).wait(timeout=60) == -signal.SIGKILL
    journal = Journal(tmp_path / "journal.db")
    assert [entry.event for entry in journal.events()] == [Taken(step=1, groups=(1,))]
    assert [(kept.step, kept.trajectory is not None) for kept in journal.trajectories()] == [(1, True)]
    assert journal.record(Released(step=1)) == 2
    journal.close()


def test_a_durable_flush_without_news_still_reaches_the_disk(tmp_path: Path):
    journal = Journal(tmp_path / "journal.db")
    journal.record(Released(step=1))
    journal.flush()
    journal.flush(durable=True)
    other = sqlite3.connect(tmp_path / "journal.db")
    assert other.execute("SELECT position FROM durable").fetchone() == (1,)


def test_a_full_disk_stops_the_run_and_keeps_what_was_there(tmp_path: Path):
    code = """
import resource
from pathlib import Path
from roll.errors import RunStopped
from roll.journal.events import GroupFailed
from roll.journal.store import Journal
journal = Journal(Path("journal.db"))
journal.record(GroupFailed(group=1, reason="early"))
journal.flush()
size = Path("journal.db-wal").stat().st_size + 5000
resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
try:
    for group in range(2, 300):
        journal.record(GroupFailed(group=group, reason="x" * 1000))
except RunStopped as error:
    print(error, flush=True)
import os
os._exit(0)
"""
    other = start_python(code, tmp_path)
    said = other.communicate(timeout=60)[0]
    assert "the journal could not be written" in said and "resume the run" in said
    assert [entry.event.group for entry in Reader(tmp_path / "journal.db").events()] == [1]  # type: ignore[attr-defined]


def test_a_file_that_is_no_journal_is_refused(tmp_path: Path):
    path = tmp_path / "journal.db"
    with pytest.raises(ConfigError, match="no journal here"):
        Reader(path)
    path.write_text("not a database, but long enough to be looked at as one " * 20)
    with pytest.raises(ConfigError, match="not a journal"):
        Reader(path)
    with pytest.raises(ConfigError, match="not a journal"):
        Journal(path)


def test_a_journal_of_another_format_is_refused(tmp_path: Path):
    path = tmp_path / "journal.db"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    for opened in (Reader, Journal):
        with pytest.raises(ConfigError, match=r"format 2 expected \(got 99\)"):
            opened(path)
