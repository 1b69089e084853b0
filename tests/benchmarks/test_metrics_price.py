"""The benchmark of the price of being observed."""

import shutil
from pathlib import Path

import pytest

from benchmarks.metrics_price import (
    Window,
    describe_pairs,
    equal_tokens,
    measure,
    scrape_cpu,
    seconds_per_step,
)


def test_the_price_is_a_mean_over_steps_so_that_a_slow_step_per_scrape_counts() -> None:
    windows = [Window(observed=True), Window(observed=False), Window(observed=True)]
    windows[0].steps_s, windows[1].steps_s, windows[2].steps_s = [0.1, 0.1, 0.4], [0.1, 0.1], [0.2]
    assert seconds_per_step(windows, observed=True) == pytest.approx(0.2)
    assert seconds_per_step(windows, observed=False) == pytest.approx(0.1)


def windows_of(*seconds: float) -> list[Window]:
    """Windows with one step each, in the order of the pattern."""
    windows = [Window(observed=index % 4 in (0, 3)) for index in range(len(seconds))]
    for window, each in zip(windows, seconds, strict=True):
        window.steps_s = [each]
    return windows


def test_a_drift_and_a_slow_repetition_leave_the_paired_ratio_as_it_is() -> None:
    steady = windows_of(*(1.1, 1.0, 1.0, 1.1), *(2.2, 2.0, 2.0, 2.2))
    assert describe_pairs(steady) == {"paired_ratio": 1.1, "standard_error": 0.0}
    drifting = windows_of(1.0, 1.1, 1.2, 1.3)
    assert describe_pairs(drifting)["paired_ratio"] == 1.0


def test_the_standard_error_of_the_paired_ratio_is_that_of_the_mean_over_repetitions() -> None:
    pairs = describe_pairs(windows_of(*(1.0, 1.0, 1.0, 1.0), *(1.21, 1.0, 1.0, 1.21)))
    # logs 0 and 0.1906: mean 0.0953, deviation 0.1348, divided by the root of 2
    assert pairs == {"paired_ratio": 1.1, "standard_error": round(1.1 * 0.0953, 4)}


def test_steps_with_more_tokens_are_compared_as_if_all_had_equally_many() -> None:
    assert equal_tokens([(1.0, 100), (2.0, 300), (1.5, 200)]) == pytest.approx([1.5, 1.5, 1.5])
    assert equal_tokens([(1.0, 100), (2.0, 100)]) == [1.0, 2.0]
    assert equal_tokens([(1.1, 100), (2.0, 300), (1.4, 200)]) == pytest.approx([1.55, 1.55, 1.4])


@pytest.mark.slow
@pytest.mark.parametrize(("page", "shared"), [(False, False), pytest.param(True, True, marks=pytest.mark.sweep)])
def test_windows_with_and_without_observers_are_measured_in_one_run(tmp_path: Path, page: bool, shared: bool) -> None:
    if page and shutil.which("chromium") is None:
        pytest.skip("needs chromium: make programs")
    windows = measure(tmp_path, rounds=1, page=page, shared=shared, window_s=8.0, warm_up_s=0.0)
    assert [(each.observed, bool(each.scrapes_s)) for each in windows] == [
        *((True, True), (False, False), (False, False), (True, True))
    ]
    assert any(each.steps_s for each in windows) and all(seconds > 0 for each in windows for seconds in each.steps_s)
    assert scrape_cpu(tmp_path / "runs" / "scraped") > 0
