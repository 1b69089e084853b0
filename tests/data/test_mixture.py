"""Shares that hold, epochs that are complete, and a sequence that goes on where it stood."""

import json
import random
from collections import Counter
from fractions import Fraction

import pytest

from roll.config.sources import Difficulty, ShareSchedule
from roll.data.mixture import Mixture, MixturePart
from roll.data.tasks import seeds
from roll.errors import ConfigError, RunStopped
from roll.types import Task


def tasks(name: str, count: int) -> list[Task]:
    return [Task(id=f"{name}{number}", domain=name) for number in range(count)]


def mixture(seed: int = 0) -> Mixture:
    parts = [
        MixturePart(name="a", tasks=tasks("a", 5), share=0.4),
        MixturePart(name="b", tasks=tasks("b", 3), share=0.3),
    ]
    return Mixture([*parts, MixturePart(name="c", tasks=tasks("c", 4), share=0.3)], seed=seed)


def test_shares_hold_to_within_one_after_every_draw():
    dealt = mixture()
    drawn: Counter[str] = Counter()
    for total in range(1, 401):
        drawn[dealt.draw().source] += 1
        for name, share in {"a": 0.4, "b": 0.3, "c": 0.3}.items():
            assert abs(drawn[name] - share * total) < 1
    assert drawn == {"a": 160, "b": 120, "c": 120}


def test_shares_hold_however_unequal_they_are():
    unequal = [[20, 1, 20, 1, 2, 1, 1], [3, 1, 50, 50, 3, 20, 50, 1, 1, 1, 3]]  # furthest-behind-first strays here
    random_ones = [[random.Random(k).randint(1, 50) for _ in range(2 + k)] for k in range(6)]
    for shares in [*unequal, *random_ones]:
        dealt = Mixture([MixturePart(name=str(i), tasks=tasks("t", 2), share=s) for i, s in enumerate(shares)], seed=0)
        drawn = [0] * len(shares)
        for total in range(1, sum(shares) + 1):
            drawn[int(dealt.draw().source)] += 1
            assert all(abs(n - Fraction(s * total, sum(shares))) < 1 for n, s in zip(drawn, shares, strict=True))
        assert drawn == shares


def test_no_task_repeats_before_all_tasks_of_its_source_were_drawn():
    dealt = Mixture([MixturePart(name="a", tasks=tasks("a", 5))], seed=0)
    draws = [dealt.draw() for _ in range(20)]
    for epoch in range(4):
        of_epoch = draws[5 * epoch : 5 * epoch + 5]
        assert {draw.task.id for draw in of_epoch} == {"a0", "a1", "a2", "a3", "a4"}
        assert {draw.attempt for draw in of_epoch} == {epoch}
    assert len({tuple(draw.task.id for draw in draws[i : i + 5]) for i in (0, 5, 10, 15)}) > 1


def test_the_order_of_a_source_does_not_depend_on_other_sources():
    alone = Mixture([MixturePart(name="a", tasks=tasks("a", 5))], seed=0)
    together = mixture()
    of_a = [draw.task.id for draw in (together.draw() for _ in range(50)) if draw.source == "a"]
    assert of_a == [alone.draw().task.id for _ in of_a]


def test_the_seed_determines_the_order():
    def order(seed: int) -> list[str]:
        dealt = mixture(seed)
        return [dealt.draw().task.id for _ in range(30)]

    assert order(1) == order(1) != order(2)


def test_a_restored_mixture_continues_the_sequence():
    for before in (0, 1, 7, 23):
        first = mixture()
        for _ in range(before):
            first.draw()
        second = mixture()
        second.draw()
        second.restore(json.loads(json.dumps(first.state())))
        assert [first.draw() for _ in range(40)] == [second.draw() for _ in range(40)]


def test_sources_other_than_the_checkpoints_are_an_error():
    state = mixture().state()
    with pytest.raises(ConfigError, match="resume with the same data"):
        Mixture([MixturePart(name="a", tasks=tasks("a", 5))], seed=0).restore(state)


def test_drawing_from_a_million_seeds_does_not_create_them():
    dealt = Mixture([MixturePart(name="game", tasks=seeds())], seed=0)
    assert len({dealt.draw().task.seed for _ in range(100)}) == 100


class Short(list[Task]):
    """Promises more than it has."""

    def __len__(self) -> int:
        return super().__len__() + 2


def test_a_source_that_ends_early_stops_the_run_by_name() -> None:
    dealt = Mixture([MixturePart(name="a", tasks=Short(tasks("a", 3)))], seed=0)
    with pytest.raises(RunStopped, match=r"source 'a' ended early: its length is 5, and it has no number [34]"):
        for _ in range(5):
            dealt.draw()


def test_a_source_gets_another_draw_for_a_forgone_one_also_after_a_restart() -> None:
    dealt = mixture()
    for _ in range(60):
        draw = dealt.draw()
        if draw.source == "b":
            dealt.forgo(draw)
    state = json.loads(json.dumps(dealt.state()))
    again = mixture()
    again.restore(state)
    assert [again.draw() for _ in range(20)] == [dealt.draw() for _ in range(20)]
    assert state["b"]["forgone"] == state["b"]["drawn"] > 20, "it is drawn until something comes of it"


def scheduled(*shares: float | tuple[float, ShareSchedule], draws_per_step: int = 4) -> Mixture:
    """Two sources, each with a share, or with its first share and a schedule."""
    pairs = [share if isinstance(share, tuple) else (share, None) for share in shares]
    parts = [
        MixturePart(name=name, tasks=tasks(name, 7), share=share, share_schedule=schedule)
        for name, (share, schedule) in zip("ab", pairs, strict=True)
    ]
    return Mixture(parts, seed=0, draws_per_step=draws_per_step)


def names(mixture: Mixture, count: int) -> str:
    return "".join(mixture.draw().source for _ in range(count))


def test_a_scheduled_share_changes_linearly_over_the_steps():
    dealt = scheduled((1.0, ShareSchedule(end=0.0, begin=1, steps=4)), 1.0)
    shares: list[float] = []
    counts: list[int] = []
    for _ in range(7):
        shares.append(round(dealt.scheduled_shares()["a"], 3))
        counts.append(names(dealt, 4).count("a"))
    # a has 1, 1, 3/4, 1/2, 1/4, 0 of 2, 2, 7/4, 3/2, 5/4, 1 and then nothing
    assert shares == [0.5, 0.5, 0.429, 0.333, 0.2, 0.0, 0.0]
    assert counts[:2] == [2, 2] and counts[5:] == [0, 0]
    assert sum(counts) == 8  # 4 x (1/2 + 1/2 + 3/7 + 1/3 + 1/5) = 7.85
    assert names(dealt, 50) == "b" * 50


def test_scheduled_shares_hold_to_within_one_draw():
    dealt = scheduled((0.9, ShareSchedule(end=0.2, steps=30)), (0.1, ShareSchedule(end=0.8, begin=5, steps=9)))
    expected, drawn = 0.0, 0
    for _ in range(400):
        expected += dealt.scheduled_shares()["a"]
        drawn += dealt.draw().source == "a"
        assert abs(expected - drawn) <= 1.001


def test_a_schedule_continues_from_a_checkpoint_and_does_not_count_forgone_draws():
    schedule = (0.0, ShareSchedule(end=1.0, steps=10))
    straight, before, after = (scheduled(schedule, 0.5) for _ in range(3))
    for each in (straight, before):
        names(each, 9)
        each.forgo(each.draw())
    after.restore(before.state())
    assert after.scheduled_shares() == straight.scheduled_shares()
    assert names(after, 60) == names(straight, 60)


def test_a_schedule_that_does_not_change_is_that_of_the_constant_shares():
    constant = scheduled(0.75, 0.25)
    still = scheduled((0.75, ShareSchedule(end=0.75, steps=1)), 0.25)
    assert names(constant, 100) == names(still, 100)
    assert constant.scheduled_shares() == {} and still.scheduled_shares() == {"a": 0.75, "b": 0.25}


def fail(dealt: Mixture, task: str, times: int) -> list[int]:
    """What `count_failed` returns for the next draws of a task, whose groups all fail."""
    counts: list[int] = []
    while len(counts) < times:
        draw = dealt.draw()
        if draw.task.id == task:
            counts.append(dealt.count_failed(draw))
            dealt.forgo(draw)
    return counts


def poisoned(*, difficulty: Difficulty | None = None) -> Mixture:
    parts = [
        MixturePart(name="a", tasks=tasks("a", 5), difficulty=difficulty),
        MixturePart(name="b", tasks=tasks("b", 3)),
    ]
    return Mixture(parts, seed=0, quarantine_after=3)


@pytest.mark.parametrize("difficulty", [None, Difficulty(target=0.5, exploration=0.5)])
def test_a_task_whose_groups_fail_three_times_in_a_row_is_not_drawn_again(difficulty: Difficulty | None) -> None:
    dealt = poisoned(difficulty=difficulty)
    assert fail(dealt, "a3", 3) == [0, 0, 3]
    restored = poisoned(difficulty=difficulty)
    restored.restore(json.loads(json.dumps(dealt.state())))
    for each in (dealt, restored):
        draws = [each.draw() for _ in range(60)]
        assert {draw.task.id for draw in draws} == {"a0", "a1", "a2", "a4", "b0", "b1", "b2"}
        assert Counter(draw.source for draw in draws) == {"a": 30, "b": 30}, "its source keeps its share"


def test_a_complete_group_of_a_task_sets_its_failures_back_to_zero() -> None:
    dealt = poisoned()
    assert fail(dealt, "a3", 2) == [0, 0]
    dealt.observe(next(draw for draw in iter(dealt.draw, None) if draw.task.id == "a3"), [0.0])
    assert fail(dealt, "a3", 3) == [0, 0, 3]


def test_failures_before_a_restart_count() -> None:
    dealt, restored = poisoned(), poisoned()
    fail(dealt, "a3", 2)
    restored.restore(json.loads(json.dumps(dealt.state())))
    assert fail(restored, "a3", 1) == [3]


def test_a_source_without_a_task_that_is_not_quarantined_stops_the_run() -> None:
    dealt = poisoned()
    for number in range(3):
        fail(dealt, f"b{number}", 3)
    with pytest.raises(
        RunStopped, match=r"tasks: all 3 tasks of source 'b' are quarantined; .*rollout.quarantine_after"
    ):
        for _ in range(2):
            dealt.draw()
