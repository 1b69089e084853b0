"""Warnings about phases that take much longer than they used to."""

import threading
import time
from pathlib import Path

import pytest

from roll.tracking.log import controller_log
from roll.tracking.phases import PhaseWatch


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_phase_is_reported_after_five_medians_and_again_when_its_duration_has_doubled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    watch = PhaseWatch(30.0, lambda phase, elapsed_s: f"{phase} waits for trainer 0 for {elapsed_s:.0f} s", clock)
    for duration in (10.0, 8.0, 12.0):
        watch.enter("update")
        clock.now += duration
        watch.enter("")
    watch.enter("update")  # at 30
    for now, num_warnings in ((79.0, 0), (80.0, 1), (129.0, 1), (130.0, 2), (229.0, 2), (230.0, 3)):
        clock.now = now
        watch.check()
        assert len(caplog.messages) == num_warnings, now
    assert caplog.messages[0] == "phase update has lasted 50 s (median 10.0 s); update waits for trainer 0 for 50 s"


def test_a_stopped_worker_is_reported_after_the_least_time_whatever_the_median(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    stopped: list[str] = []
    watch = PhaseWatch(30.0, lambda phase, elapsed_s: "waiting for trainer 0", clock, lambda: "".join(stopped))
    watch.enter("update")
    clock.now = 100.0
    watch.enter("update")
    for now, names, num_warnings in ((129.0, ["trainer 0"], 0), (131.0, [], 0), (140.0, ["trainer 0"], 1)):
        clock.now, stopped[:] = now, names
        watch.check()
        assert len(caplog.messages) == num_warnings, now
    clock.now = 150.0
    watch.check()
    assert caplog.messages == ["phase update has lasted 40 s (median 100.0 s); waiting for trainer 0"]


def test_short_phases_are_reported_only_after_the_least_time(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    watch = PhaseWatch(30.0, clock=clock)
    watch.details["wait"] = lambda: "1 of 4 groups is complete"
    watch.check()
    watch.enter("wait")
    clock.now = 29.0
    watch.check()
    assert not caplog.messages
    clock.now = 31.0
    watch.check()
    watch.enter("")
    clock.now = 1000.0
    watch.check()
    assert caplog.messages == ["phase wait has lasted 31 s; 1 of 4 groups is complete"]


def test_the_line_goes_to_standard_output_like_the_progress(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    watch = PhaseWatch(30.0, clock=clock)
    with controller_log(tmp_path / "log"):
        watch.enter("start")
        clock.now = 40.0
        watch.check()
    assert capsys.readouterr() == ("phase start has lasted 40 s\n", "")
    assert (tmp_path / "log").read_text().endswith(" WARNING phase start has lasted 40 s\n")


def test_a_phase_that_blocks_the_thread_of_the_run_is_reported() -> None:
    reported = threading.Event()

    def describe(phase: str, elapsed_s: float) -> str:
        reported.set()
        return ""

    with PhaseWatch(0.02, describe) as watch:
        watch.enter("update")
        deadline = time.monotonic() + 300
        while not reported.is_set():  # no await: nothing else of this thread runs
            assert time.monotonic() < deadline
            time.sleep(0.01)
