from collections.abc import Callable

import pytest

from roll.tracking.meter import Meter


def ticking(*times: float) -> Callable[[], float]:
    left = iter(times)
    return lambda: next(left)


def test_seconds_of_a_phase_add_up_within_a_step():
    meter = Meter(ticking(10.0, 12.0, 20.0, 21.5))
    with meter("wait"):
        pass
    with meter("wait"):
        pass
    assert meter.flush() == {"time/wait": 3.5}


def test_a_phase_that_raises_is_still_timed():
    meter = Meter(ticking(1.0, 4.0))
    with pytest.raises(KeyError), meter("update"):
        raise KeyError
    assert meter.flush() == {"time/update": 3.0}


def test_log_sets_and_count_adds():
    meter = Meter()
    meter.log({"loss/policy": 1.0})
    meter.log({"loss/policy": 2.0})
    meter.count("groups/retried")
    meter.count("groups/retried", 4)
    assert meter.flush() == {"loss/policy": 2.0, "groups/retried": 5.0}


def test_a_flush_begins_an_empty_step():
    meter = Meter()
    meter.count("groups/retried")
    meter.flush()
    assert meter.flush() == {}
