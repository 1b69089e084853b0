from pathlib import Path

from roll.journal.records import ActivitySpan, merge
from roll.journal.store import Activity, Journal


def span(worker: str, name: str, start: float, end: float) -> ActivitySpan:
    return ActivitySpan(worker=worker, activity=name, start=start, end=end)


def test_spans_have_no_gaps_and_entering_the_current_activity_continues_it(tmp_path: Path):
    journal, times = Journal(tmp_path / "journal.db"), iter([1.0, 2.5, 4.0, 9.0])
    activity = Activity(journal, "generator 0", clock=lambda: next(times))
    for name in ("generate", "generate", "idle: slots", "generate"):
        activity.enter(name)
    activity.close()
    assert list(journal.spans()) == [
        span("generator 0", "generate", 1.0, 2.5),
        span("generator 0", "idle: slots", 2.5, 4.0),
        span("generator 0", "generate", 4.0, 9.0),
    ]


def test_nothing_is_recorded_between_close_and_the_next_enter(tmp_path: Path):
    journal, times = Journal(tmp_path / "journal.db"), iter([1.0, 2.0, 3.0, 5.0, 6.0])
    activity = Activity(journal, "trainer", clock=lambda: next(times))
    activity.enter("update")
    activity.close()
    activity.close()
    activity.enter("update")
    activity.close()
    assert list(journal.spans()) == [span("trainer", "update", 1.0, 2.0), span("trainer", "update", 5.0, 6.0)]


def test_adjacent_spans_of_one_activity_are_merged_also_across_batches(tmp_path: Path):
    journal = Journal(tmp_path / "journal.db")
    for start in range(4):
        journal.record_span("a", "x", start, start + 1)
        journal.record_span("b", "x" if start % 2 else "y", start, start + 1)
        if start == 1:
            journal.flush()
    journal.record_span("a", "x", 4.5, 5)
    found = sorted(journal.spans(), key=lambda each: (each.worker, each.start))
    assert found == [
        span("a", "x", 0, 4),
        span("a", "x", 4.5, 5),
        *(span("b", "x" if start % 2 else "y", start, start + 1) for start in range(4)),
    ]


def test_merging_loses_no_time_and_keeps_the_order_of_each_worker():
    given = [
        span("a", "x", 0, 1),
        span("b", "x", 0, 2),
        span("a", "x", 1, 2),
        span("a", "y", 2, 3),
        span("b", "x", 2, 3),
    ]
    assert list(merge(given)) == [span("a", "x", 0, 2), span("a", "y", 2, 3), span("b", "x", 0, 3)]
