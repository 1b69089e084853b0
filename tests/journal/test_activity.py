from pathlib import Path

from roll.journal.activity import Activity
from roll.journal.records import Span, merge
from roll.journal.store import Journal


def span(worker: str, doing: str, began: float, ended: float) -> Span:
    return Span(worker=worker, doing=doing, began=began, ended=ended)


def test_spans_follow_each_other_without_a_gap_and_the_same_goes_on(tmp_path: Path):
    journal, times = Journal(tmp_path / "journal.db"), iter([1.0, 2.5, 4.0, 9.0])
    activity = Activity(journal, "generator 0", clock=lambda: next(times))
    for doing in ("generate", "generate", "idle: slots", "generate"):
        activity.enter(doing)
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


def test_spans_of_the_same_that_touch_are_one_also_over_batches(tmp_path: Path):
    journal = Journal(tmp_path / "journal.db")
    for began in range(4):
        journal.span("a", "x", began, began + 1)
        journal.span("b", "x" if began % 2 else "y", began, began + 1)
        if began == 1:
            journal.flush()
    journal.span("a", "x", 4.5, 5)
    found = sorted(journal.spans(), key=lambda each: (each.worker, each.began))
    assert found == [
        span("a", "x", 0, 4),
        span("a", "x", 4.5, 5),
        *(span("b", "x" if began % 2 else "y", began, began + 1) for began in range(4)),
    ]


def test_merging_loses_no_second_and_keeps_each_workers_order():
    given = [
        span("a", "x", 0, 1),
        span("b", "x", 0, 2),
        span("a", "x", 1, 2),
        span("a", "y", 2, 3),
        span("b", "x", 2, 3),
    ]
    assert list(merge(given)) == [span("a", "x", 0, 2), span("a", "y", 2, 3), span("b", "x", 0, 3)]
