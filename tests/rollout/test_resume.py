"""The state of a resumed run: complete attempts, valid tokens, and nothing from abandoned weights."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roll.data.mixture import Mixture, MixturePart
from roll.errors import RunStopped
from roll.journal.events import (
    GroupAdmitted,
    GroupFailed,
    GroupFiltered,
    GroupReady,
    GroupStale,
    RolledBack,
    TaskQuarantined,
    WeightsPublished,
)
from roll.journal.records import Chunk
from roll.journal.store import Journal
from roll.rollout.episode.conversation import checksum
from roll.rollout.inflight import InflightGroupState, SchedulerState, draw_state
from roll.rollout.resume import CheckpointState, ResumeState, resume_from
from roll.serving.policies import ServedVersion
from roll.types import Finish, Score, Segment, Status, Task, Trajectory, Turn

TASKS = [Task(id=f"t{number}", domain="d") for number in range(9)]
PROMPT = [3, 4]


def mixture() -> Mixture:
    return Mixture([MixturePart(name="d", tasks=TASKS)], seed=0)


def order(num: int) -> list[str]:
    drawn = mixture()
    return [drawn.draw().task.id for _ in range(num)]


def published(version: int, step: int) -> WeightsPublished:
    return WeightsPublished(version=version, step=step, digest="")


def trajectory(sibling: int, versions: list[int], status: Status = Status.FINISHED) -> Trajectory:
    turn = Turn(
        observation=np.array(PROMPT, np.int32),
        sampled=np.arange(10, 10 + len(versions), dtype=np.int32),
        sampler_logprobs=np.full(len(versions), -0.5, np.float32),
        versions=np.array(versions, np.int32),
        finish=Finish.STOP,
    )
    score = Score(1.0) if status.valid else None
    return Trajectory(
        task=TASKS[0], sibling=sibling, segments=(Segment(turns=(turn,)),), status=status, score=score, reason=""
    )


def chunk(sibling: int, ids: tuple[int, ...], version: int, *, turn: int = 0, **changes: Any) -> Chunk:
    fields = {"group": 0, "attempt": 0, "context": checksum(PROMPT), **changes}
    logprobs = np.full(len(ids), -0.5, np.float32)
    return Chunk(sibling=sibling, turn=turn, ids=np.array(ids, np.int32), logprobs=logprobs, version=version, **fields)


class Interrupted:
    """A run whose journal has two groups at version 0, a checkpoint of step 0 between them, and a test's additions."""

    def __init__(self, path: Path) -> None:
        self.journal = Journal(path / "journal.db")
        drawn = mixture()
        first = drawn.draw()
        self.journal.record(published(0, 0))
        self.journal.record(GroupAdmitted(group=0, task=first.task.id, domain="d", birth=0))
        group = InflightGroupState(ticket=0, birth=0, draw=draw_state(first), observed=False)
        self.saved = CheckpointState(
            step=0,
            journal=self.journal.position(),
            scheduler=SchedulerState(mixture=drawn.state(), groups=(group,)),
            algorithm={},
            metrics={},
        )
        self.journal.record(GroupAdmitted(group=1, task=drawn.draw().task.id, domain="d", birth=0))

    def resume(self, mixed: Mixture | None = None) -> ResumeState:
        return resume_from(self.saved, mixed or mixture(), self.journal)

    def close(self) -> None:
        self.journal.close()


def test_groups_before_and_after_the_checkpoint_stay_in_flight_and_the_data_continues(tmp_path: Path) -> None:
    with closing(Interrupted(tmp_path)) as run:
        mixed = mixture()
        state = run.resume(mixed)
        assert [(each.ticket, each.birth) for each in state.groups] == [
            (0, ServedVersion(0, 0)),
            (1, ServedVersion(0, 0)),
        ]
        assert [each.draw.task.id for each in state.groups] == order(2) and mixed.draw().task.id == order(3)[2]
        assert state.step_of == {0: 0} and not state.returned


def test_events_under_lost_weights_are_ignored(tmp_path: Path) -> None:
    with closing(Interrupted(tmp_path)) as run:
        run.journal.record(published(1, 1))
        run.journal.record(GroupAdmitted(group=2, task=order(3)[2], domain="d", birth=1))
        run.journal.record(GroupFailed(group=1, reason="a reward raised"))
        mixed = mixture()
        state = run.resume(mixed)
        assert [each.ticket for each in state.groups] == [0, 1] and mixed.draw().task.id == order(3)[2]
        assert state.step_of == {0: 0}


@pytest.mark.parametrize("exact", [False, True])
def test_a_task_quarantined_under_lost_weights_stays_so_unless_the_run_has_to_be_exact(
    tmp_path: Path, exact: bool
) -> None:
    with closing(Interrupted(tmp_path)) as run:
        lost, mixed = order(3)[2], mixture()
        run.journal.record(published(1, 1))
        index = [task.id for task in TASKS].index(lost)
        run.journal.record(TaskQuarantined(task=lost, source="d", index=index, num_failed=3, reason="it died"))
        resume_from(run.saved, mixed, run.journal, exact=exact)
        assert mixed.draw().task.id == (lost if exact else order(4)[3])


def test_a_failed_group_after_the_checkpoint_counts_for_the_quarantine_of_its_task(tmp_path: Path) -> None:
    with closing(Interrupted(tmp_path)) as run:
        run.journal.record(GroupFailed(group=1, reason="it died"))
        mixed = Mixture([MixturePart(name="d", tasks=TASKS)], seed=0, quarantine_after=1)
        run.resume(mixed)
        drawn = {mixed.draw().task.id for _ in range(2 * len(TASKS))}
        assert {task.id for task in TASKS} - drawn == {order(2)[1]}


def test_versions_of_a_line_that_was_given_up_stay_void_after_a_second_restart(tmp_path: Path) -> None:
    with closing(Interrupted(tmp_path)) as run:
        run.journal.record(published(1, 1))
        run.journal.record_trajectory(0, trajectory(0, [0, 1, 1]))
        run.journal.record_progress(chunk(1, (10, 11), 0))
        run.journal.record_progress(chunk(1, (12,), 1))
        run.journal.record(RolledBack(to_step=0, reason="resumed"))
        run.journal.record(published(2, 0))
        run.journal.record_progress(chunk(1, (50, 51), 2))  # continued from 10, 11
        run.journal.record(published(3, 1))
        run.saved = replace(run.saved, step=1)
        state = run.resume()
        assert state.step_of == {0: 0, 2: 0, 3: 1}
        first, second = state.groups[0].attempts[0], state.groups[0].attempts[1]
        assert first.trajectory is None and first.turns[0].so_far.ids.tolist() == [10]
        so_far = second.turns[0].so_far
        assert so_far.ids.tolist() == [10, 11, 50, 51] and so_far.versions.tolist() == [0, 0, 2, 2]


def test_groups_that_a_second_process_admitted_and_dropped_count_after_a_second_restart(tmp_path: Path) -> None:
    with closing(Interrupted(tmp_path)) as run:
        run.journal.record(published(1, 1))
        run.journal.record(GroupFailed(group=0, reason="under weights that are lost"))
        run.journal.record(RolledBack(to_step=run.saved.step, reason="resumed"))
        run.journal.record(published(2, run.saved.step))
        run.journal.record(GroupFailed(group=1, reason="it died"))
        run.journal.record(GroupAdmitted(group=5, task=order(3)[2], domain="d", birth=2))
        run.journal.record(published(3, 1))
        run.journal.record(GroupFailed(group=5, reason="under weights that are lost"))
        assert [group.ticket for group in run.resume().groups] == [0, 5]


def test_failed_and_stale_groups_are_not_in_flight_and_stale_tasks_come_first(tmp_path: Path) -> None:
    with closing(Interrupted(tmp_path)) as run:
        run.journal.record(GroupStale(group=0, reason="others won"))
        run.journal.record(GroupFailed(group=1, reason="a reward raised"))
        run.journal.record(GroupAdmitted(group=2, task=order(1)[0], domain="d", birth=0))
        run.journal.record(GroupStale(group=2, reason="others won"))
        state = run.resume()
        assert state.groups == [], (
            "the failed group has a replacement, and the task that was stale twice comes after it"
        )
        assert [draw.task.id for draw in state.returned] == [order(3)[2], order(1)[0]]


def test_complete_failed_and_partial_attempts_are_told_apart(tmp_path: Path) -> None:
    with closing(Interrupted(tmp_path)) as run:
        run.journal.record_trajectory(0, trajectory(0, [0, 0]))
        run.journal.record_trajectory(0, trajectory(1, [], Status.REWARD_FAILED))
        run.journal.record_progress(chunk(1, (10, 11), 0, attempt=1))
        run.journal.record_progress(chunk(1, (20,), 0, attempt=1, turn=1, context=7))
        run.journal.record_progress(chunk(2, (10,), 0, context=5))
        run.journal.record_progress(chunk(2, (11,), 0))  # the environment had diverged
        complete, again, diverged = (run.resume().groups[0].attempts[sibling] for sibling in range(3))
        assert complete.trajectory is not None and complete.trajectory.num_sampled == 2
        assert again.num_failed == 1 and [turn.so_far.ids.tolist() for turn in again.turns] == [[10, 11], [20]]
        assert again.turns[1].checksum == 7
        assert [turn.so_far.ids.tolist() for turn in diverged.turns] == [[11]]


def test_a_group_that_was_ready_is_not_observed_twice(tmp_path: Path) -> None:
    with closing(Interrupted(tmp_path)) as run:
        run.journal.record_trajectory(0, trajectory(0, [0]))
        run.journal.record(GroupReady(group=0, siblings=(0,), rewards=(1.0,)))
        assert [each.observed for each in run.resume().groups] == [True, False]


def test_a_group_that_was_ready_under_lost_weights_is_observed_again(tmp_path: Path) -> None:
    with closing(Interrupted(tmp_path)) as run:
        run.journal.record(published(1, 1))
        run.journal.record_trajectory(0, trajectory(0, [0]))
        run.journal.record(GroupReady(group=0, rewards=(1.0,)))
        assert [each.observed for each in run.resume().groups] == [False, False]


def test_rewards_that_ended_before_the_checkpoint_are_observed_with_their_group(tmp_path: Path) -> None:
    with closing(Interrupted(tmp_path)) as run:
        run.journal.record(GroupFiltered(group=0, reason="too easy", rewards=(1.0, 0.0)))
        mixed, observed = mixture(), list[list[float]]()
        mixed.observe = lambda draw, rewards: observed.append(list(rewards))  # type: ignore[method-assign]
        run.resume(mixed)
        assert observed == [[1.0, 0.0]]


def test_other_data_than_the_run_had_is_refused(tmp_path: Path) -> None:
    with closing(Interrupted(tmp_path)) as run:
        run.journal.record(GroupAdmitted(group=2, task="t99", domain="d", birth=0))
        with pytest.raises(RunStopped, match=r"group 2: its task was 't99' of d .* seed the run was started with"):
            run.resume()
