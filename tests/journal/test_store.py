import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roll.errors import ConfigError
from roll.journal.batch import INSERT_STEP_GROUP, PRUNE
from roll.journal.database import check_format
from roll.journal.events import (
    GroupAdmitted,
    GroupFailed,
    GroupReady,
    RolledBack,
    SlotsReleased,
    StepStarted,
    TrajectoryEnded,
    WeightsPublished,
)
from roll.journal.records import Chunk, TokenValues, TrajectoryQuery
from roll.journal.store import Journal, Reader
from roll.types import Finish, Message, Score, Segment, Status, Task, Trajectory, Turn

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def attempt(sibling: int = 0, *, status: Status = Status.FINISHED, domain: str = "math", **task: Any) -> Trajectory:
    turn = Turn(
        observation=np.array([5, 6], np.int32),
        sampled=np.array([7, 8, 9], np.int32),
        sampler_logprobs=np.array([-0.5, -0.25, -0.125], np.float32),
        versions=np.array([3, 3, 4], np.int32),
        finish=Finish.STOP,
        reward=0.25,
        generated_s=3.0,
        queued_s=0.5,
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


def chunk(group: int, sibling: int) -> Chunk:
    ids, logprobs = np.array([5], np.int32), np.array([-0.5], np.float32)
    return Chunk(group=group, sibling=sibling, attempt=0, turn=0, context=1, ids=ids, logprobs=logprobs, version=0)


def within(seconds: float, condition: Callable[[], bool]) -> bool:
    """Whether it becomes true in that time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def test_events_are_read_back_typed_in_order_and_by_kind(tmp_path: Path):
    journal = Journal(tmp_path / "journal.db")
    first = journal.record(GroupReady(group=1))
    journal.record(StepStarted(step=1, groups=(1, 2)))
    journal.record(GroupReady(group=3))
    assert [entry.event for entry in journal.events()] == [
        GroupReady(group=1),
        StepStarted(step=1, groups=(1, 2)),
        GroupReady(group=3),
    ]
    assert [entry.event.group for entry in journal.events(GroupReady, after=first)] == [3]
    assert [entry.id for entry in journal.events()] == [1, 2, 3] and journal.position() == 3
    journal.close()


def test_step_version_and_group_are_columns(tmp_path: Path):
    journal = Journal(tmp_path / "journal.db")
    journal.record(WeightsPublished(version=7, step=6, digest="x"))
    journal.record(GroupAdmitted(group=9, task="t", domain="math", birth=7))
    journal.close()
    rows = (
        sqlite3.connect(tmp_path / "journal.db").execute('SELECT kind, step, version, "group" FROM events').fetchall()
    )
    assert rows == [("WeightsPublished", 6, 7, None), ("GroupAdmitted", None, None, 9)]


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


def test_a_trajectory_is_read_back_bit_for_bit(tmp_path: Path):
    journal = Journal(tmp_path / "journal.db")
    given = attempt(2, metadata={"level": 3, "tags": ["a"]})
    journal.record_trajectory(11, given)
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
    assert (kept.num_tokens, kept.versions) == (9, {3: 6, 4: 3})
    assert [segment.agent for segment in found.segments] == ["policy", "other"]
    assert [segment.turns[0].state for segment in found.segments] == [each.turns[0].state for each in given.segments]
    for row in ("observation", "sampled", "sampler_logprobs", "versions"):
        for one, other in zip(found.turns, given.turns, strict=True):
            assert getattr(one, row).dtype == getattr(other, row).dtype
            np.testing.assert_array_equal(getattr(one, row), getattr(other, row))
    turn = found.turns[0]
    assert (turn.finish, turn.generated_s, turn.queued_s, turn.waited_s) == (Finish.STOP, 3.0, 0.5, 1.5)


def test_a_stored_trajectory_is_also_the_event_of_its_end(tmp_path: Path):
    journal = Journal(tmp_path / "journal.db")
    first = journal.record(GroupAdmitted(group=4, task="t-1", domain="math", birth=3))
    assert journal.record_trajectory(4, attempt(1)) == first + 1
    journal.record_trajectory(4, replace(attempt(2, status=Status.ENV_FAILED), segments=(), reason="boom"))
    last = journal.record(GroupReady(group=4))
    assert journal.position() == last == 4
    found = list(journal.events())
    assert [entry.id for entry in found] == [1, 2, 3, 4]
    assert [entry.event for entry in found[1:3]] == [entry.event for entry in journal.events(TrajectoryEnded)]
    assert found[1].event == TrajectoryEnded(
        group=4, sibling=1, status=Status.FINISHED, reward=1.75, reason="", num_tokens=9, versions=(3, 4)
    )
    assert found[2].event == TrajectoryEnded(
        group=4, sibling=2, status=Status.ENV_FAILED, reward=None, reason="boom", num_tokens=0, versions=None
    )
    assert found[1].time == next(journal.trajectories()).ended
    assert [entry.id for entry in journal.events(after=2)] == [3, 4]
    journal.close()
    reader = Reader(tmp_path / "journal.db")
    assert reader.position() == 4 and [entry.id for entry in reader.events(GroupReady)] == [4]


def test_a_failure_has_no_reward(tmp_path: Path):
    journal = Journal(tmp_path / "journal.db")
    journal.record_trajectory(1, attempt(status=Status.REWARD_FAILED))
    assert next(journal.trajectories()).reward is None


def test_a_task_that_cannot_be_recorded_is_named(tmp_path: Path):
    for name, metadata, fault in (("z", {"z": 1j}, "got a complex"), ("big", {"big": 2**70}, "64 bits")):
        journal = Journal(tmp_path / f"{name}.db")
        journal.record(SlotsReleased(step=1))
        journal.record_trajectory(1, attempt(metadata=metadata))
        journal.record(SlotsReleased(step=2))
        with pytest.raises(ConfigError, match=rf"task 't-1': .*{fault}"):
            journal.flush()
        assert [entry.event.step for entry in Reader(tmp_path / f"{name}.db").events(SlotsReleased)] == [1]


def test_trajectories_are_found_by_step_domain_status_and_number(tmp_path: Path):
    journal = Journal(tmp_path / "journal.db")
    journal.record_trajectory(1, attempt(0))
    journal.record_trajectory(1, attempt(1, status=Status.TRUNCATED))
    journal.record_trajectory(2, attempt(0, domain="code"))
    journal.record(StepStarted(step=4, groups=(1,)))

    def found(**wanted: Any) -> list[tuple[int, int]]:
        return [(kept.group, kept.sibling) for kept in journal.trajectories(TrajectoryQuery(**wanted))]

    assert found() == [(1, 0), (1, 1), (2, 0)]
    assert found(step=4) == [(1, 0), (1, 1)]
    assert found(domain="code") == found(group=2) == [(2, 0)]
    assert found(status=Status.TRUNCATED) == [(1, 1)]
    assert found(last=2) == [(1, 1), (2, 0)]


def test_only_the_attempt_that_replaced_a_failed_one_counts_as_trained(tmp_path: Path):
    journal = Journal(tmp_path / "journal.db")
    journal.record_trajectory(1, attempt(0, status=Status.ENV_FAILED))
    journal.record_trajectory(1, attempt(0))
    journal.record(StepStarted(step=2, groups=(1,)))
    assert [(kept.status, kept.step) for kept in journal.trajectories()] == [
        (Status.ENV_FAILED, None),
        (Status.FINISHED, 2),
    ]


def test_surplus_and_failed_attempts_of_a_group_in_training_are_not_trained(tmp_path: Path):
    journal = Journal(tmp_path / "journal.db")
    for sibling, status in enumerate((Status.FINISHED, Status.ENV_FAILED, Status.TRUNCATED, Status.FINISHED)):
        journal.record_trajectory(1, attempt(sibling, status=status))
    journal.record(GroupReady(group=1, siblings=(0, 2)))
    journal.record(StepStarted(step=3, groups=(1,)))
    assert [(kept.step, kept.surplus) for kept in journal.trajectories()] == [
        (3, False),
        (None, True),
        (3, False),
        (None, True),
    ]


def test_a_rollback_undoes_later_steps_and_deletes_nothing(tmp_path: Path):
    journal = Journal(tmp_path / "journal.db")
    for group in (1, 2):
        journal.record_trajectory(group, attempt())
        journal.record(StepStarted(step=group, groups=(group,)))
    journal.record(RolledBack(to_step=1, reason="killed"))
    journal.record_trajectory(2, attempt())
    journal.record(StepStarted(step=2, groups=(2,)))
    assert [(kept.group, kept.step, kept.rolled_back) for kept in journal.trajectories()] == [
        (1, 1, False),
        (2, None, True),
        (2, 2, False),
    ]
    kinds = [type(entry.event).__name__ for entry in journal.events()]
    assert kinds == ["TrajectoryEnded", "StepStarted"] * 2 + ["RolledBack"] + ["TrajectoryEnded", "StepStarted"]


def test_a_group_used_again_after_a_rollback_counts_as_trained(tmp_path: Path):
    journal = Journal(tmp_path / "journal.db")
    journal.record_trajectory(1, attempt())
    journal.record(StepStarted(step=2, groups=(1,)))
    journal.record(RolledBack(to_step=1, reason="killed"))
    journal.record(StepStarted(step=2, groups=(1,)))
    assert [(kept.step, kept.rolled_back) for kept in journal.trajectories()] == [(2, False)]


def test_pruning_drops_old_tokens_and_keeps_events_and_untrained_groups(tmp_path: Path):
    journal = Journal(tmp_path / "journal.db")
    for group in (1, 2, 3):
        journal.record_trajectory(group, attempt(0))
        journal.record_trajectory(group, attempt(1, status=Status.ENGINE_FAILED))
        journal.record_trajectory(group, attempt(1))
        journal.record(StepStarted(step=group, groups=(group,)))
    journal.record_trajectory(4, attempt())
    for group in (2, 3, 4):
        journal.record_progress(chunk(group, 9))  # of attempts that never ended
    journal.record_token_values(
        TokenValues(step=step, group=step, sibling=0, advantages=np.ones(3, np.float32), trainer_logprobs=None)
        for step in (1, 2, 3)
    )
    journal.prune(before_step=3)
    journal.flush()
    connection = sqlite3.connect(tmp_path / "journal.db")
    assert connection.execute('SELECT step, "group", sibling FROM token_values').fetchall() == [(3, 3, 0)]
    assert [(each.group, each.sibling) for each in journal.progress()] == [(3, 9), (4, 9)]
    assert [kept.group for kept in journal.trajectories() if kept.trajectory] == [3, 3, 3, 4]
    assert [kept.group for kept in journal.trajectories()] == [1, 1, 1, 2, 2, 2, 3, 3, 3, 4]
    assert len(list(journal.events(StepStarted))) == 3 and len(list(journal.events(TrajectoryEnded))) == 10


def test_pruning_and_marking_scan_only_the_rows_they_change(tmp_path: Path):
    Journal(tmp_path / "journal.db").close()
    connection = sqlite3.connect(tmp_path / "journal.db")
    for statement in (*PRUNE, INSERT_STEP_GROUP):
        values = {"step": 1, "group": 2}
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", values)]
        assert not [step for step in plan if step.startswith(("SCAN trajectories", "SCAN taken"))], (statement, plan)


def test_events_reach_the_file_without_a_flush(tmp_path: Path):
    journal, reader = Journal(tmp_path / "journal.db"), Reader(tmp_path / "journal.db")
    for step in range(1000):
        journal.record(SlotsReleased(step=step))
    assert within(10, lambda: reader.position() == 1000)
    journal.record(SlotsReleased(step=1000))  # alone in its batch
    assert within(10, lambda: reader.position() == 1001)


def test_a_reader_always_sees_a_prefix(tmp_path: Path):
    journal, reader = Journal(tmp_path / "journal.db"), Reader(tmp_path / "journal.db")
    seen = set[int]()
    for group in range(6000):
        journal.record_trajectory(group, attempt())
        assert journal.record(GroupReady(group=group)) == 2 * group + 2
        if group % 200 == 0:
            with reader.snapshot():
                kept = [found.group for found in reader.trajectories(TrajectoryQuery(bodies=False))]
                ready = [entry.event.group for entry in reader.events(GroupReady)]
            assert kept == list(range(len(kept))) and ready == list(range(len(ready)))
            assert len(kept) - len(ready) in (0, 1)
            seen.add(len(ready))
    assert len(seen) > 2  # it really was read in between
    journal.close()
    assert [entry.id for entry in reader.events()] == list(range(1, 12001))


def test_an_unfinished_read_does_not_hide_later_events(tmp_path: Path):
    journal = Journal(tmp_path / "journal.db")
    for step in range(600):
        journal.record(SlotsReleased(step=step))
    half_read = journal.events()
    assert next(half_read).id == 1
    journal.record(SlotsReleased(step=600))
    assert [entry.id for entry in journal.events()][-1] == 601
    assert [entry.id for entry in half_read][-1] == 601


def test_reads_within_a_snapshot_see_no_changes(tmp_path: Path):
    journal, reader = Journal(tmp_path / "journal.db"), Reader(tmp_path / "journal.db")
    journal.record(SlotsReleased(step=1))
    journal.flush()
    with reader.snapshot():
        assert reader.position() == 1
        journal.record(SlotsReleased(step=2))
        journal.flush()
        assert reader.position() == 1
    assert reader.position() == 2


def test_a_second_close_does_nothing(tmp_path: Path):
    journal = Journal(tmp_path / "journal.db")
    journal.record(SlotsReleased(step=1))
    before = threading.active_count()
    journal.close()
    journal.close()
    assert threading.active_count() == before - 1
    assert Reader(tmp_path / "journal.db").position() == 1


def test_another_process_reads_while_the_run_writes(tmp_path: Path):
    journal = Journal(tmp_path / "journal.db")
    journal.record(SlotsReleased(step=1))
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
        journal.record(SlotsReleased(step=step))
    journal.flush(durable=True)
    other.stdin.write("\n")
    other.stdin.flush()
    assert other.stdout.readline() == "599\n"
    assert other.wait(timeout=300) == 0
    journal.close()


def test_flushed_events_survive_a_kill_and_the_journal_can_be_continued(tmp_path: Path):
    code = """
import os, signal
from pathlib import Path
from roll.journal.events import SlotsReleased, StepStarted
from roll.journal.store import Journal
from test_store import attempt
journal = Journal(Path("journal.db"))
journal.record_trajectory(1, attempt())
journal.record(StepStarted(step=1, groups=(1,)))
journal.flush(durable=True)
journal.record(SlotsReleased(step=1))
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert start_python(code, tmp_path).wait(timeout=300) == -signal.SIGKILL
    journal = Journal(tmp_path / "journal.db")
    assert [entry.event for entry in journal.events()][1:] == [StepStarted(step=1, groups=(1,))]
    assert [(kept.step, kept.trajectory is not None) for kept in journal.trajectories()] == [(1, True)]
    assert journal.record(SlotsReleased(step=1)) == 3
    journal.close()


def test_a_durable_flush_without_new_events_still_syncs_the_disk(tmp_path: Path):
    journal = Journal(tmp_path / "journal.db")
    journal.record(SlotsReleased(step=1))
    journal.flush()
    journal.flush(durable=True)
    other = sqlite3.connect(tmp_path / "journal.db")
    assert other.execute("SELECT position FROM durable").fetchone() == (1,)


def test_a_full_disk_stops_the_run_and_keeps_earlier_events(tmp_path: Path):
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
resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
try:
    for group in range(2, 300):
        journal.record(GroupFailed(group=group, reason="x" * 1000))
    journal.flush()
except RunStopped as error:
    print(error, flush=True)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
for late in (lambda: journal.record(GroupFailed(group=0, reason="late")), journal.events().__next__, journal.close):
    try:
        late()
    except RunStopped as error:
        print("again", flush=True)
journal.close()
import os
os._exit(0)
"""
    other = start_python(code, tmp_path)
    said = other.communicate(timeout=300)[0]
    assert "the journal could not be written" in said and "resume the run" in said
    assert said.count("again") == 3  # at every call after it, though there is space again
    assert [entry.event.group for entry in Reader(tmp_path / "journal.db").events(GroupFailed)] == [1]


def test_a_file_that_is_not_a_journal_is_refused(tmp_path: Path):
    path = tmp_path / "journal.db"
    with pytest.raises(ConfigError, match="no journal here"):
        Reader(path)
    path.write_text("not a database, but long enough to be looked at as one " * 20)
    with pytest.raises(ConfigError, match="not a journal"):
        Reader(path)
    with pytest.raises(ConfigError, match="not a journal"):
        Journal(path)


def test_a_journal_of_another_format_is_refused_and_left_as_it_is(tmp_path: Path):
    path = tmp_path / "journal.db"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 5")
    connection.close()
    before = path.read_bytes()
    for open_journal in (Reader, Journal, check_format):
        with pytest.raises(ConfigError, match=r"format 5 \(.* format 10\); use the release that wrote it"):
            open_journal(path)
    assert path.read_bytes() == before and [entry.name for entry in tmp_path.iterdir()] == ["journal.db"]
