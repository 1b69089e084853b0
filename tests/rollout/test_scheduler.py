"""Groups from admission to the buffer, with attempts that fail."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from roll.config.sources import ShareSchedule
from roll.data.mixture import Draw, Mixture, MixturePart
from roll.engines.base import Request
from roll.engines.fake import FakeGenerator
from roll.engines.native.sampling import noise_key
from roll.errors import RunStopped
from roll.journal.events import (
    AttemptRetried,
    GroupAdmitted,
    GroupFailed,
    GroupFiltered,
    GroupReady,
    GroupStale,
    StepStarted,
    TrajectoryEnded,
)
from roll.journal.records import TrajectoryQuery
from roll.rollout.episode.conversation import checksum
from roll.rollout.episode.runner import SavedTurn
from roll.rollout.inflight import InflightGroup, SavedAttempt
from roll.rollout.source import TaskSource
from roll.serving.dispatch import Concurrency, LoadBalancer, Sampled
from roll.serving.policies import ServedVersion
from roll.types import Group, Spec, Status
from tests.rollout.rig import GROUP_SIZE, SEED, TASKS, Rig, Setting, keys_of

RIG = "tests.rollout.rig"


def order(num: int) -> list[str]:
    """The tasks a mixture gives first."""
    mixture = Mixture([MixturePart(name="d", tasks=TASKS)], seed=SEED)
    return [mixture.draw().task.id for _ in range(num)]


def test_no_more_groups_are_admitted_than_are_trained_or_replaced(tmp_path: Path) -> None:
    with closing(Rig(tmp_path, Setting(num_slots=12, reward={"refuse": "0123"}, max_retries=0))) as rig:
        asyncio.run(rig.run())
        num_failed = len(rig.events(GroupFailed))
        assert num_failed > 0
        assert len(rig.events(GroupAdmitted)) == 8 * 4 + num_failed
        assert len(rig.events(GroupReady)) == 8 * 4


def test_a_failed_attempt_is_retried_and_no_failure_is_trained_on(tmp_path: Path) -> None:
    with closing(Rig(tmp_path, Setting(reward={"refuse": "01"}))) as rig:
        asyncio.run(rig.run())
        retried = rig.events(AttemptRetried)
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
        assert len([event for event in rig.events(AttemptRetried) if event.group == 1]) in range(2, 2 * GROUP_SIZE + 1)
        assert [event.task for event in rig.events(GroupAdmitted)] == order(5)
        assert rig.events(StepStarted)[0].groups == (0, 2, 3, 4)


def test_the_run_stops_when_too_many_groups_in_a_row_fail(tmp_path: Path) -> None:
    setting = Setting(reward={"refuse": "0123456789"}, max_retries=0, max_failed_groups=3)
    with closing(Rig(tmp_path, setting)) as rig:
        with pytest.raises(RunStopped, match=r"4 groups in a row failed.*no score.*max_failed_groups"):
            asyncio.run(rig.run())
        assert rig.trainer.batches == []


def test_occasional_failed_groups_do_not_stop_the_run(tmp_path: Path) -> None:
    setting = Setting(steps=10, reward={"refuse": "012"}, max_retries=0, max_failed_groups=12)
    with closing(Rig(tmp_path, setting)) as rig:
        assert asyncio.run(rig.run()) == 10
        assert len(rig.events(GroupFailed)) > 12, "more failures than the limit, but never so many in a row"


def even_tickets(group: Group) -> str:
    return "" if group.id % 2 else "its ticket is even"


def everything(group: Group) -> str:
    return "nothing is good enough"


def test_a_filtered_group_is_replaced_at_the_tail_and_counted(tmp_path: Path) -> None:
    with closing(Rig(tmp_path, Setting(steps=3, filters=(Spec(f"{__name__}:even_tickets"),)))) as rig:
        asyncio.run(rig.run())
        filtered = rig.events(GroupFiltered)
        assert filtered and all(event.group % 2 == 0 and "even" in event.reason for event in filtered)
        assert all(ticket % 2 for event in rig.events(StepStarted) for ticket in event.groups)
        assert [len(event.groups) for event in rig.events(StepStarted)] == [4, 4, 4]
        assert sum(metrics["filtered/groups"] for metrics in rig.metrics.values()) == len(filtered)
        assert len(rig.events(GroupAdmitted)) == 3 * 4 + len(filtered)


def test_occasional_filtered_groups_do_not_stop_the_run(tmp_path: Path) -> None:
    setting = Setting(steps=6, filters=(Spec(f"{__name__}:even_tickets"),), max_filtered_groups=5)
    with closing(Rig(tmp_path, setting)) as rig:
        assert asyncio.run(rig.run()) == 6
        assert len(rig.events(GroupFiltered)) > 5, "more than the limit, but never so many in a row"


def test_the_run_stops_when_too_many_groups_in_a_row_are_filtered(tmp_path: Path) -> None:
    setting = Setting(filters=(Spec(f"{__name__}:everything"),), max_filtered_groups=5)
    with closing(Rig(tmp_path, setting)) as rig:
        with pytest.raises(RunStopped, match=r"6 groups in a row were filtered.*good enough.*max_filtered_groups"):
            asyncio.run(rig.run())
        assert rig.trainer.batches == []


STRAGGLERS = frozenset[int]().union(*(keys_of(f"t{number}", tries=3) for number in range(0, 30, 5)))


@pytest.mark.parametrize("staleness", [0, 1, 2])
def test_redundant_groups_lose_to_faster_ones_and_staleness_stays_bounded(staleness: int, tmp_path: Path) -> None:
    setting = Setting(
        steps=10,
        num_slots=4 * (staleness + 1),
        redundant_groups=2,
        max_age=staleness,
        stragglers=STRAGGLERS,
        delay=60,
        generators=2,
        reward={"refuse": "1"},
    )
    with closing(Rig(tmp_path, setting)) as rig:
        asyncio.run(rig.run())
        births = {event.group: event.birth for event in rig.events(GroupAdmitted)}
        tasks = {event.group: event.task for event in rig.events(GroupAdmitted)}
        stale = [event.group for event in rig.events(GroupStale)]
        taken = [(event.step, group) for event in rig.events(StepStarted) for group in event.groups]
        assert len(taken) == len({group for _, group in taken}) == 40 and not {group for _, group in taken} & set(stale)
        assert max(step - 1 - births[group] for step, group in taken) <= staleness
        assert rig.buffer.num_free + len(rig.buffer._slots) == 4 * (staleness + 1) + 2, "no slot is lost"
        for batch in rig.trainer.batches:
            assert len(batch.rewards) == 4 * GROUP_SIZE
        assert stale and sum(metrics["stale/groups"] for metrics in rig.metrics.values()) == len(stale)
        assert staleness > 0 or len(stale) >= 10 * 2 - 2, "at staleness 0 nothing is carried over"
        for lost in stale[:-2]:  # the last step's need not be drawn again
            again = [group for group, task in tasks.items() if task == tasks[lost] and group > lost]
            assert again, f"the task of group {lost} is forgotten"


def test_redundant_siblings_make_up_for_slow_and_for_failed_ones(tmp_path: Path) -> None:
    slow = frozenset(
        noise_key(SEED, "train", "d", f"t{task}", number, 1, 0) for task in range(30) for number in range(12)
    )
    setting = Setting(steps=3, redundant_siblings=2, stragglers=slow, delay=10_000, max_retries=0)
    with closing(Rig(tmp_path, setting)) as rig:
        asyncio.run(rig.run())  # with sibling 1 it would never end
        assert all(len(batch.rewards) == 4 * GROUP_SIZE for batch in rig.trainer.batches)
        assert {event.sibling for event in rig.events(TrajectoryEnded)} <= {0, 2, 3}
        chosen = {event.group: event.siblings for event in rig.events(GroupReady)}
        assert all(len(siblings) == GROUP_SIZE and 1 not in siblings for siblings in chosen.values())
        trained = [kept for step in (1, 2, 3) for kept in rig.journal.trajectories(TrajectoryQuery(step=step))]
        assert len(trained) == 3 * 4 * GROUP_SIZE, "those that were too many are kept, but were not trained on"
        assert all(kept.sibling in chosen[kept.group] for kept in trained)


def test_surplus_siblings_are_stopped_while_they_run(tmp_path: Path) -> None:
    class Watched(FakeGenerator):
        """Records the ids of aborted requests."""

        stopped: tuple[str, ...] = ()

        async def abort(self, ids: Sequence[str] | None = None) -> None:
            self.stopped += tuple(ids or ())
            await super().abort(ids)

    slow = frozenset(
        noise_key(SEED, "train", "d", f"t{task}", number, 1, 0) for task in range(30) for number in range(12)
    )
    engine = Watched(stragglers=slow, delay=10_000)
    with closing(Rig(tmp_path, Setting(steps=3, redundant_siblings=1), make_engine=lambda **_: engine)) as rig:
        asyncio.run(rig.run())
    siblings = [name.split("/")[4] for name in engine.stopped]  # purpose, domain, task, attempt, sibling, turn
    assert set(siblings) == {"1"} and len(siblings) >= 2 * 4, "of every group but perhaps the last step's"


def test_a_group_with_spare_siblings_fails_only_when_too_many_of_them_do(tmp_path: Path) -> None:
    setting = Setting(steps=4, redundant_siblings=2, max_retries=0, reward={"refuse": "0123"}, max_failed_groups=100)
    with closing(Rig(tmp_path, setting)) as rig:
        asyncio.run(rig.run())
        bad = Counter(event.group for event in rig.events(TrajectoryEnded) if not event.status.valid)
        failed = {event.group for event in rig.events(GroupFailed)}
        assert failed and all(bad[group] >= 3 for group in failed), "two of four may fail"
        assert any(bad[event.group] in (1, 2) for event in rig.events(GroupReady))


def test_rewards_observed_by_an_earlier_process_are_not_observed_again(tmp_path: Path) -> None:
    class Noting(Mixture):
        """Records the draws whose rewards it observed."""

        def __init__(self) -> None:
            super().__init__([MixturePart(name="d", tasks=TASKS)], seed=SEED)
            self.told: list[str] = []

        def observe(self, draw: Draw, rewards: Sequence[float]) -> None:
            self.told.append(draw.task.id)

    with closing(Rig(tmp_path, Setting(steps=1))) as rig:
        rig.scheduler.mixture = mixture = Noting()
        held = InflightGroup(ticket=0, draw=mixture.draw(), birth=ServedVersion(0, 0), observed=True)
        assert asyncio.run(rig.run([held])) == 1
        assert rig.events(StepStarted)[0].groups == (0, 1, 2, 3) and sorted(mixture.told) == sorted(order(4)[1:])


def test_a_partial_response_of_an_earlier_process_continues_with_its_tokens(tmp_path: Path) -> None:
    class Watched(FakeGenerator):
        """Remembers how far each request had come when it was asked for."""

        def __init__(self) -> None:
            super().__init__()
            self.produced: dict[str, int] = {}

        async def submit(self, requests: Sequence[Request]) -> None:
            self.produced |= {request.id.partition("~")[0]: request.produced for request in requests}
            await super().submit(requests)

    engine = Watched()
    with closing(Rig(tmp_path, Setting(steps=1), make_engine=lambda **_: engine)) as rig:
        draw = rig.scheduler.mixture.draw()
        so_far = Sampled(ids=np.array([10], np.int32), logprobs=np.zeros(1, np.float32), versions=np.zeros(1, np.int32))
        context = checksum(rig.template.open(draw.task.messages, where="").tolist())
        past = {0: SavedAttempt(turns=(SavedTurn(checksum=context, so_far=so_far),))}
        asyncio.run(rig.run([InflightGroup(ticket=0, draw=draw, birth=ServedVersion(0, 0), attempts=past)]))
    name = f"train/d/{draw.task.id}/0"
    assert (engine.produced[f"{name}/0/0"], engine.produced[f"{name}/1/0"]) == (1, 0)


def test_shares_hold_over_trained_groups_despite_failures(tmp_path: Path) -> None:
    easy = [replace(task, domain="easy") for task in TASKS]
    hard = [replace(task, id=f"h{task.id}", domain="hard") for task in TASKS]
    with closing(Rig(tmp_path, Setting(steps=9, num_slots=8))) as rig:
        sources = {
            name: TaskSource(name=name, tasks=tasks, env=Spec("single_turn"), reward=Spec(f"{RIG}:digit", refused))
            for name, tasks, refused in (("easy", easy, {}), ("hard", hard, {"refuse": "01234"}))
        }
        rig.scheduler.sources = sources
        rig.scheduler.mixture = Mixture(
            [MixturePart(name="easy", tasks=easy, share=2), MixturePart(name="hard", tasks=hard, share=1)], seed=SEED
        )
        asyncio.run(rig.run())
        domains = {event.group: event.domain for event in rig.events(GroupAdmitted)}
        taken = [domains[group] for event in rig.events(StepStarted) for group in event.groups]
        assert len(rig.events(GroupFailed)) > 3 and len(taken) == 36
        assert abs(taken.count("hard") - 12) <= 2, "a third, although most that failed were hard"


def test_scheduled_shares_are_metrics(tmp_path: Path) -> None:
    fading = ShareSchedule(end=0.0, steps=4)
    with closing(Rig(tmp_path, Setting(steps=1))) as rig:
        rig.scheduler.mixture = Mixture(
            [MixturePart(name="d", tasks=TASKS, share_schedule=fading), MixturePart(name="e", tasks=TASKS)],
            seed=SEED,
            draws_per_step=2,
        )
        for _ in range(4):
            rig.scheduler.mixture.draw()
        counts = rig.scheduler.drain_counts()  # after two steps d has half of its share
        assert counts == {"mixture/share/d": pytest.approx(1 / 3, abs=1e-6), "mixture/share/e": pytest.approx(2 / 3)}


def test_busy_generators_serve_older_groups_first(tmp_path: Path) -> None:
    bad = order(1)[0]
    rig = Rig(tmp_path, Setting(steps=1, reward={"tasks": bad}))
    rig.router.balancer = LoadBalancer(1, Concurrency(limit=1))
    with closing(rig):
        asyncio.run(rig.run())
        ended = [event.group for event in rig.events(TrajectoryEnded)]
    retried = [place for place, group in enumerate(ended) if group == 0]
    assert len(retried) > GROUP_SIZE, "it was tried again"
    assert retried[-1] < ended.index(3), "its retries were asked for last, and went before the last group"
