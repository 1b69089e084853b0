"""The benchmark of the price of being observed."""

import shutil
from pathlib import Path

import pytest

from benchmarks.metrics_price import Window, measure, scrape_cpu, seconds_per_step


def test_the_price_is_a_mean_over_steps_so_that_a_slow_step_per_scrape_counts() -> None:
    windows = [Window(observed=True), Window(observed=False), Window(observed=True)]
    windows[0].steps_s, windows[1].steps_s, windows[2].steps_s = [0.1, 0.1, 0.4], [0.1, 0.1], [0.2]
    assert seconds_per_step(windows, observed=True) == pytest.approx(0.2)
    assert seconds_per_step(windows, observed=False) == pytest.approx(0.1)


@pytest.mark.slow
@pytest.mark.parametrize(("page", "shared"), [(False, False), pytest.param(True, True, marks=pytest.mark.sweep)])
def test_windows_with_and_without_observers_are_measured_in_one_run(tmp_path: Path, page: bool, shared: bool) -> None:
    if page and shutil.which("chromium") is None:
        pytest.skip("needs chromium: make programs")
    windows = measure(tmp_path, rounds=1, window_s=8.0, page=page, shared=shared)
    assert [(each.observed, bool(each.scrapes_s)) for each in windows] == [
        *((True, True), (False, False), (False, False), (True, True))
    ]
    assert any(each.steps_s for each in windows) and all(seconds > 0 for each in windows for seconds in each.steps_s)
    assert scrape_cpu(tmp_path / "runs" / "scraped") > 0
