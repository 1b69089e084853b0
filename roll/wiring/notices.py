"""Builds the notices about problems of a run from its configuration."""

from __future__ import annotations

from pathlib import Path

from roll.config.notices import NoticeKind
from roll.config.schema import Run
from roll.explain.run import uncorrected
from roll.journal.store import Journal
from roll.pipelines.notices import NoticeRecorder
from roll.tracking.directory import METRICS
from roll.tracking.notices.monitor import NoticeMonitor, build_detectors
from roll.tracking.sinks import read_lines

_OF_REWARDS: tuple[NoticeKind, ...] = ("constant_reward", "no_signal")
"""Not for runs that learn from more than the rewards in their metrics."""


def build_notice_recorder(run: Run, journal: Journal, directory: Path, resumed_from: int | None) -> NoticeRecorder:
    """The notices of a run. One that is resumed from a step takes the steps up to it into account."""
    other_signal = "teacher" in run.needs or run.reward_model is not None
    silenced: set[NoticeKind] = {*run.tracking.silenced, *(_OF_REWARDS if other_signal else ())}
    detectors = build_detectors(uncorrected=bool(uncorrected(run)), silenced=silenced)
    recorder = NoticeRecorder(monitor=NoticeMonitor(detectors), journal=journal, directory=directory)
    if resumed_from is not None:
        recorder.resume(read_lines(directory / METRICS), resumed_from)
    return recorder
