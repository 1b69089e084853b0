"""Groups from admission to the buffer, with attempts that fail."""

import asyncio
from contextlib import closing
from pathlib import Path

import pytest

from roll.data.mixture import Mixture, Part
from roll.errors import RunStopped
from roll.journal.events import Admitted, GroupFailed, GroupFiltered, GroupReady, Retried, Taken, TrajectoryEnded
from roll.types import Call, Group, Status
from tests.rollout.rig import GROUP_SIZE, SEED, TASKS, Rig, Setting


def order(num: int) -> list[str]:
    """The tasks a mixture gives first."""
    mixture = Mixture([Part(name="d", tasks=TASKS)], seed=SEED)
    return [mixture.draw().task.id for _ in range(num)]


def test_no_more_groups_are_admitted_than_are_trained_or_given_up(tmp_path: Path) -> None:
    with closing(Rig(tmp_path, Setting(num_slots=12, reward={"refuse": "0123"}, max_retries=0))) as rig:
        asyncio.run(rig.run())
        num_failed = len(rig.events(GroupFailed))
        assert num_failed > 0
        assert len(rig.events(Admitted)) == 8 * 4 + num_failed
        assert len(rig.events(GroupReady)) == 8 * 4


def test_a_failed_attempt_is_made_anew_and_no_failure_is_trained_on(tmp_path: Path) -> None:
    with closing(Rig(tmp_path, Setting(reward={"refuse": "01"}))) as rig:
        asyncio.run(rig.run())
        retried = rig.events(Retried)
        assert retried and all(event.status is Status.REWARD_FAILED for event in retried)
        ended = [event for event in rig.events(TrajectoryEnded) if event.status is Status.REWARD_FAILED]
        assert len(ended) >= len(retried) and all(event.reward is None for event in ended)
        assert all(float(reward) >= 2 for batch in rig.trainer.batches for reward in batch.rewards)
        assert sum(metrics.get("failed/reward_failed", 0) for metrics in rig.metrics.values()) == len(ended)


def test_a_group_that_fails_again_and_again_is_replaced_by_the_next_task_at_the_tail(tmp_path: Path) -> None:
    bad = order(3)[1]
    setting = Setting(steps=1, groups_per_step=4, num_slots=4, reward={"tasks": bad}, max_retries=2)
    with closing(Rig(tmp_path, setting)) as rig:
        asyncio.run(rig.run())
        (failed,) = rig.events(GroupFailed)
        assert failed.group == 1 and "no score" in failed.reason
        assert len([event for event in rig.events(Retried) if event.group == 1]) in range(2, 2 * GROUP_SIZE + 1)
        assert [event.task for event in rig.events(Admitted)] == order(5)
        assert rig.events(Taken)[0].groups == (0, 2, 3, 4)


def test_the_run_stops_when_too_many_groups_in_a_row_fail(tmp_path: Path) -> None:
    setting = Setting(reward={"refuse": "0123456789"}, max_retries=0, max_failed_groups=3)
    with closing(Rig(tmp_path, setting)) as rig:
        with pytest.raises(RunStopped, match=r"4 groups in a row failed.*no score.*max_failed_groups"):
            asyncio.run(rig.run())
        assert rig.trainer.batches == []


def test_groups_that_fail_now_and_then_stop_nothing(tmp_path: Path) -> None:
    setting = Setting(steps=10, reward={"refuse": "012"}, max_retries=0, max_failed_groups=12)
    with closing(Rig(tmp_path, setting)) as rig:
        assert asyncio.run(rig.run()) == 10
        assert len(rig.events(GroupFailed)) > 12, "more failures than the limit, but never so many in a row"


def test_its_state_draws_the_oldest_untrained_group_next(tmp_path: Path) -> None:
    class Noted(Rig):
        """Asks for the state at every checkpoint, while later groups are under way."""

        def __init__(self, path: Path, setting: Setting) -> None:
            super().__init__(path, setting)
            self.next_tasks: list[tuple[int, str]] = []
            self.loop.report = self.note

        def note(self, step: int, metrics: object) -> None:
            mixture = Mixture([Part(name="d", tasks=TASKS)], seed=SEED)
            mixture.restore(self.scheduler.state())
            self.next_tasks.append((step, mixture.draw().task.id))

    with closing(Noted(tmp_path, Setting(steps=5, num_slots=12))) as rig:
        asyncio.run(rig.run())
        tasks = order(21)
        assert rig.next_tasks == [(step, tasks[4 * step]) for step in range(1, 6)]


def even_tickets(group: Group) -> str:
    return "" if group.id % 2 else "its ticket is even"


def everything(group: Group) -> str:
    return "nothing is good enough"


def test_a_filtered_group_is_replaced_at_the_tail_and_counted(tmp_path: Path) -> None:
    with closing(Rig(tmp_path, Setting(steps=3, filters=(Call(f"{__name__}:even_tickets"),)))) as rig:
        asyncio.run(rig.run())
        filtered = rig.events(GroupFiltered)
        assert filtered and all(event.group % 2 == 0 and "even" in event.reason for event in filtered)
        assert all(ticket % 2 for event in rig.events(Taken) for ticket in event.groups)
        assert [len(event.groups) for event in rig.events(Taken)] == [4, 4, 4]
        assert sum(metrics["filtered/groups"] for metrics in rig.metrics.values()) == len(filtered)
        assert len(rig.events(Admitted)) == 3 * 4 + len(filtered)


def test_the_run_stops_when_too_many_groups_in_a_row_are_filtered(tmp_path: Path) -> None:
    setting = Setting(filters=(Call(f"{__name__}:everything"),), max_filtered_groups=5)
    with closing(Rig(tmp_path, setting)) as rig:
        with pytest.raises(RunStopped, match=r"6 groups in a row were filtered.*good enough.*max_filtered_groups"):
            asyncio.run(rig.run())
        assert rig.trainer.batches == []
