import random
from pathlib import Path

import pytest

from roll.journal.events import Event, RunStarted, SlotsReleased
from roll.journal.records import ActivitySpan, JournalEntry
from roll.report.time_account import ProcessLifetime, TimeAccount, account_time, extend_lifetimes

RUN = RunStarted(config_digest="")


def account(events: list[tuple[float, Event]], spans: list[tuple[str, str, float, float]]) -> TimeAccount:
    processes: list[ProcessLifetime] = []
    for id, (time, event) in enumerate(events):
        extend_lifetimes(processes, JournalEntry(id=id, time=time, event=event))
    found = [
        ActivitySpan(worker=worker, activity=activity, start=start, end=end) for worker, activity, start, end in spans
    ]
    return account_time(processes, lambda: found)


def test_seconds_are_summed_by_activity_with_an_explicit_remainder():
    found = account(
        [(100, RUN), (110, SlotsReleased(step=1))],
        [
            ("g", "generate", 100, 104),
            ("g", "idle: slots", 104, 105),
            ("g", "generate", 105, 106),
            ("t", "update", 102, 110),
        ],
    )
    generator, trainer = found.workers
    assert (generator.activity_s, generator.unaccounted_s) == ({"generate": 5, "idle: slots": 1}, 4)
    assert (trainer.activity_s, trainer.unaccounted_s) == ({"update": 8}, 2)
    assert (found.total.wall_s, found.total.unaccounted_s, found.wall_s) == (20, 6, 10)
    assert found.total.activity_s == {"update": 8, "generate": 5, "idle: slots": 1}


def test_time_between_processes_is_not_running_and_belongs_to_no_worker():
    found = account(
        [(0, RUN), (10, SlotsReleased(step=1)), (100, RUN), (130, SlotsReleased(step=2))],
        [("g", "generate", 0, 10), ("g", "generate", 100, 130), ("late", "score", 100, 115)],
    )
    assert (found.wall_s, found.not_running_s, found.num_processes) == (40, 90, 2)
    assert {sheet.worker: (sheet.wall_s, sheet.unaccounted_s) for sheet in found.workers} == {
        "g": (40, 0),
        "late": (30, 15),
    }


def test_two_activities_at_once_leave_a_negative_remainder():
    found = account([(0, RUN), (10, SlotsReleased(step=1))], [("g", "generate", 0, 10), ("g", "score", 5, 8)])
    assert found.total.unaccounted_s == -3


def test_work_before_the_start_is_reported_separately():
    found = account([(10, RUN), (20, SlotsReleased(step=1))], [("g", "start", 4, 12), ("g", "generate", 12, 20)])
    assert (found.outside_s, found.total.activity_s, found.total.unaccounted_s) == (6, {"generate": 8, "start": 2}, 0)


def test_a_process_lasts_until_its_last_span_but_not_beyond_the_next_start():
    events = [(0, RUN), (5, SlotsReleased(step=1)), (20, RUN), (21, SlotsReleased(step=2))]
    found = account(events, [("g", "generate", 0, 8), ("t", "update", 8, 9), ("g", "generate", 20, 25)])
    assert (found.wall_s, found.not_running_s, found.outside_s) == (14, 11, 0)
    found = account(events, [("g", "generate", 4, 23)])
    assert (found.wall_s, found.not_running_s, found.total.activity_s) == (21, 0, {"generate": 17})


def test_a_span_extends_its_process_also_without_events():
    found = account([(0, RUN)], [("r", "start", 3, 5), ("r", "score", 6, 9)])
    assert (found.wall_s, found.total.unaccounted_s) == (9, 4)


def test_a_span_before_a_start_event_does_not_extend_the_previous_process():
    found = account(
        [(0, RUN), (10, SlotsReleased(step=1)), (100, RUN), (130, SlotsReleased(step=2))],
        [("g", "generate", 0, 10), ("g", "idle: the start", 98, 101), ("g", "generate", 101, 130)],
    )
    assert (found.wall_s, found.not_running_s, found.outside_s) == (40, 90, 2)
    assert found.total.unaccounted_s == 0


@pytest.mark.parametrize("seed", range(10))
def test_a_random_schedule_is_accounted_exactly(seed: int, tmp_path: Path):
    chance, now = random.Random(seed), 1000.0
    events: list[tuple[float, Event]] = []
    spans: list[tuple[str, str, float, float]] = []
    spent: dict[tuple[str, str], float] = {}
    walls: dict[str, float] = {}
    wall = 0.0
    for _ in range(chance.randint(1, 4)):
        length = chance.randint(5, 50)
        events += [(now, RUN), (now + length, SlotsReleased(step=1))]
        for worker in chance.sample("abcd", 3):
            time = now
            walls[worker] = walls.get(worker, 0.0) + length
            while time < now + length:
                activity, seconds = (
                    chance.choice(["x", "y", "idle: z", ""]),
                    min(chance.randint(1, 9), now + length - time),
                )
                if activity or time == now:  # every worker does something in its process
                    spans.append((worker, activity or "x", time, time + seconds))
                    spent[worker, activity or "x"] = spent.get((worker, activity or "x"), 0.0) + seconds
                time += seconds
        wall += length
        now += length + chance.randint(1, 100)
    found = account(events, spans)
    assert found.wall_s == wall and found.outside_s == 0
    for sheet in found.workers:
        own = {activity: seconds for (worker, activity), seconds in spent.items() if worker == sheet.worker}
        assert (sheet.wall_s, sheet.activity_s) == (walls[sheet.worker], own)
        assert sheet.unaccounted_s == walls[sheet.worker] - sum(own.values())
    assert found.total.wall_s == sum(walls.values())
    assert found.total.unaccounted_s == sum(walls.values()) - sum(spent.values())
