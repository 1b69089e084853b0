"""What `roll bench elastic` reads from a journal, worked out by hand."""

import pytest

from benchmarks.elastic import generating_s, round_of, speed
from roll.journal.events import GeneratorJoined, GeneratorLeft
from roll.journal.records import ActivitySpan, JournalEntry

JOIN = JournalEntry(id=1, time=112.0, event=GeneratorJoined(generator=1, node="", version=3, digest="d", seconds=9.0))
LEAVE = JournalEntry(id=2, time=141.0, event=GeneratorLeft(generator=1, reason="asked", num_requests=4, num_tokens=70))
TOKENS = [(80.0, 50), (85.0, 500), (95.0, 1500), (115.0, 10), (125.0, 3000), (135.0, 1000), (150.0, 9)]


def spans(*own: tuple[float, float]) -> list[ActivitySpan]:
    """Generator 0 generates all the time, generator 1 in these spans."""
    both = [("generator-0", 0.0, 200.0), *(("generator-1", *span) for span in own)]
    return [ActivitySpan(worker=worker, activity="generate", start=start, end=end) for worker, start, end in both]


def test_a_round_counts_from_the_request_to_the_first_tokens_with_the_share_of_the_time_after_it() -> None:
    worked = spans((50.0, 60.0), (113.0, 118.0), (119.0, 140.0))
    each = round_of((100.0, 140.0), JOIN, LEAVE, worked, TOKENS)
    assert each.seconds == pytest.approx(13.0) and each.process_s == 9.0
    assert each.share == pytest.approx(9 / 19), "9 of 10 seconds, and the other one all 10"
    assert each.tokens_per_s == pytest.approx((2000 / 15, 4000 / 20))
    assert (each.num_requests, each.num_tokens) == (4, 70)


def test_a_generator_that_joined_without_its_share_fails_the_benchmark() -> None:
    with pytest.raises(AssertionError, match=r"generator 1 had 0\.17 of the work"):
        round_of((100.0, 140.0), JOIN, LEAVE, spans((113.0, 115.0), (124.0, 140.0)), TOKENS)


def test_only_the_part_of_a_span_inside_the_window_counts() -> None:
    assert generating_s(spans((5.0, 12.0), (18.0, 30.0)), "generator-1", (10.0, 20.0)) == pytest.approx(4.0)
    assert speed([(0.0, 7), (2.0, 10), (4.0, 30)], 0.0, 4.0) == pytest.approx(10.0)
