"""What a resumed run finds of a group: whole attempts, tokens that still count, and nothing of abandoned weights."""

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roll.data.mixture import Mixture, Part
from roll.errors import RunStopped
from roll.journal.events import (
    Admitted,
    GroupFailed,
    GroupReady,
    GroupStale,
    Published,
    RolledBack,
)
from roll.journal.records import Chunk
from roll.journal.store import Journal
from roll.rollout.episode.runner import checksum
from roll.rollout.resume import Standing, standing
from roll.types import Finish, Score, Segment, ServedVersion, Status, Task, Trajectory, Turn

TASKS = [Task(id=f"t{number}", domain="d") for number in range(9)]
PROMPT = [3, 4]


def mixture() -> Mixture:
    return Mixture([Part(name="d", tasks=TASKS)], seed=0)


def order(num: int) -> list[str]:
    drawn = mixture()
    return [drawn.draw().task.id for _ in range(num)]


def published(version: int, step: int) -> Published:
    return Published(version=version, step=step, digest="")


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
    given = {"group": 0, "attempt": 0, "context": checksum(PROMPT), **changes}
    logprobs = np.full(len(ids), -0.5, np.float32)
    return Chunk(sibling=sibling, turn=turn, ids=np.array(ids, np.int32), logprobs=logprobs, version=version, **given)


class Past:
    """A journal with two groups at version 0, a checkpoint of step 0 between them, and what a test adds."""

    def __init__(self, path: Path) -> None:
        self.journal = Journal(path / "journal.db")
        drawn = mixture()
        first = drawn.draw()
        self.journal.record(published(0, 0))
        self.journal.record(Admitted(group=0, task=first.task.id, domain="d", birth=0))
        held = [{"ticket": 0, "birth": 0, "source": "d", "index": first.index, "attempt": 0, "returned": 0}]
        self.state = {"step": 0, "journal": self.journal.position(), "mixture": drawn.state(), "returned": []}
        self.state["held"] = held
        self.journal.record(Admitted(group=1, task=drawn.draw().task.id, domain="d", birth=0))

    def found(self, mixed: Mixture | None = None) -> Standing:
        return standing(self.state, mixed or mixture(), self.journal)

    def close(self) -> None:
        self.journal.close()


def test_groups_of_the_checkpoint_and_those_admitted_after_it_are_held_and_the_data_goes_on(tmp_path: Path) -> None:
    with closing(Past(tmp_path)) as past:
        mixed = mixture()
        found = past.found(mixed)
        assert [(each.ticket, each.birth) for each in found.held] == [
            (0, ServedVersion(0, 0)),
            (1, ServedVersion(0, 0)),
        ]
        assert [each.draw.task.id for each in found.held] == order(2) and mixed.draw().task.id == order(3)[2]
        assert found.step_of == {0: 0} and not found.returned


def test_what_happened_under_weights_that_are_lost_has_not_happened(tmp_path: Path) -> None:
    with closing(Past(tmp_path)) as past:
        past.journal.record(published(1, 1))
        past.journal.record(Admitted(group=2, task=order(3)[2], domain="d", birth=1))
        past.journal.record(GroupFailed(group=1, reason="a reward raised"))
        mixed = mixture()
        found = past.found(mixed)
        assert [each.ticket for each in found.held] == [0, 1] and mixed.draw().task.id == order(3)[2]
        assert found.step_of == {0: 0}


def test_versions_of_a_line_that_was_given_up_stay_void_after_a_second_restart(tmp_path: Path) -> None:
    with closing(Past(tmp_path)) as past:
        past.journal.record(published(1, 1))
        past.journal.keep(0, trajectory(0, [0, 1, 1]))
        past.journal.note(chunk(1, (10, 11), 0))
        past.journal.note(chunk(1, (12,), 1))
        past.journal.record(RolledBack(to_step=0, why="resumed"))
        past.journal.record(published(2, 0))
        past.journal.note(chunk(1, (50, 51), 2))  # went on from 10, 11
        past.journal.record(published(3, 1))
        past.state["step"] = 1
        found = past.found()
        assert found.step_of == {0: 0, 2: 0, 3: 1}
        first, second = found.held[0].past[0], found.held[0].past[1]
        assert first.whole is None and first.turns[0].so_far.ids.tolist() == [10]
        so_far = second.turns[0].so_far
        assert so_far.ids.tolist() == [10, 11, 50, 51] and so_far.versions.tolist() == [0, 0, 2, 2]


def test_failed_and_stale_groups_are_not_held_and_stale_tasks_come_first(tmp_path: Path) -> None:
    with closing(Past(tmp_path)) as past:
        past.journal.record(GroupStale(group=0, reason="others won"))
        past.journal.record(GroupFailed(group=1, reason="a reward raised"))
        past.journal.record(Admitted(group=2, task=order(1)[0], domain="d", birth=0))
        past.journal.record(GroupStale(group=2, reason="others won"))
        found = past.found()
        assert found.held == [] and [draw.task.id for draw in found.returned] == order(1)


def test_whole_attempts_failures_and_partial_turns_are_told_apart(tmp_path: Path) -> None:
    with closing(Past(tmp_path)) as past:
        past.journal.keep(0, trajectory(0, [0, 0]))
        past.journal.keep(0, trajectory(1, [], Status.REWARD_FAILED))
        past.journal.note(chunk(1, (10, 11), 0, attempt=1))
        past.journal.note(chunk(1, (20,), 0, attempt=1, turn=1, context=7))
        past.journal.note(chunk(2, (10,), 0, context=5))
        past.journal.note(chunk(2, (11,), 0))  # the environment had said something else
        whole, again, diverged = (past.found().held[0].past[sibling] for sibling in range(3))
        assert whole.whole is not None and whole.whole.num_sampled == 2
        assert again.num_failed == 1 and [said.so_far.ids.tolist() for said in again.turns] == [[10, 11], [20]]
        assert again.turns[1].context == 7
        assert [said.so_far.ids.tolist() for said in diverged.turns] == [[11]]


def test_a_group_that_was_ready_is_not_observed_twice(tmp_path: Path) -> None:
    with closing(Past(tmp_path)) as past:
        past.journal.keep(0, trajectory(0, [0]))
        past.journal.record(GroupReady(group=0, siblings=(0,)))
        assert [each.observed for each in past.found().held] == [True, False]


def test_other_data_than_the_run_had_is_refused(tmp_path: Path) -> None:
    with closing(Past(tmp_path)) as past:
        past.journal.record(Admitted(group=2, task="t99", domain="d", birth=0))
        with pytest.raises(RunStopped, match=r"group 2: its task was 't99' of d .* seed the run was started with"):
            past.found()
