"""Notices of a run in its journal, also after a crash between a step and its notice."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from roll.journal.events import Event, ProblemEnded, ProblemNoticed, RolledBack, RunStarted
from roll.journal.store import Journal
from roll.pipelines.notices import NoticeRecorder
from roll.report.notices import ProblemList, format_notice
from roll.tracking.notices.monitor import NoticeMonitor, build_detectors

DIRECTORY = Path("runs/my run")


def recorder(journal: Journal) -> NoticeRecorder:
    monitor = NoticeMonitor(build_detectors(uncorrected=False))
    return NoticeRecorder(monitor=monitor, journal=journal, directory=DIRECTORY)


def steps(first: int, last: int) -> list[dict[str, Any]]:
    """The reward falls in step 11, which is noticed in step 13, and recovers in step 21: over in step 27."""
    return [{"step": step, "reward/mean": 0.0 if 11 <= step <= 20 else 0.4} for step in range(first, last + 1)]


def observe(notices: NoticeRecorder, first: int, last: int) -> None:
    for line in steps(first, last):
        notices.observe(line["step"], line)


def recorded(journal: Journal) -> list[tuple[str, int]]:
    journal.flush()
    events = [entry.event for entry in journal.events()]
    return [(type(each).__name__, each.step) for each in events if isinstance(each, ProblemNoticed | ProblemEnded)]


WHOLE = [("ProblemNoticed", 13), ("ProblemEnded", 27)]


@pytest.mark.parametrize("step", range(10, 30))
@pytest.mark.parametrize("lost", [False, True], ids=["recorded", "lost"])
def test_a_resumed_run_records_what_an_uninterrupted_one_does(tmp_path: Path, step: int, lost: bool) -> None:
    """The process before ended after the metrics of `step`, with or without its notices."""
    with closing(Journal(tmp_path / "journal.db")) as journal:
        observe(recorder(journal), 1, step - 1 if lost else step)
        again = recorder(journal)
        again.resume(steps(1, step), step)
        journal.record(RolledBack(to_step=step, reason="resumed"))
        observe(again, step + 1, 31)
        assert recorded(journal) == WHOLE


def test_a_notice_of_a_step_that_was_rolled_back_is_recorded_again(tmp_path: Path) -> None:
    with closing(Journal(tmp_path / "journal.db")) as journal:
        observe(recorder(journal), 1, 14)
        again = recorder(journal)
        again.resume(steps(1, 11), 11)
        journal.record(RolledBack(to_step=11, reason="resumed"))
        observe(again, 12, 31)
        assert recorded(journal) == [WHOLE[0], *WHOLE]
        problems = ProblemList()
        for entry in journal.events():
            problems.apply(entry.event)
        ((problem),) = problems.problems()
        assert problem.noticed.step == 13 and problem.ended is not None and problem.ended.step == 27


def test_a_notice_says_what_to_look_at(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with closing(Journal(tmp_path / "journal.db")) as journal:
        observe(recorder(journal), 1, 13)
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert line.startswith("step 13: reward collapse: the reward fell to 0.160, from 0.400 at step 5")
    assert "look at the metrics reward/mean, loss/entropy" in line and "actor_train.optimizer.lr" in line
    assert line.endswith("`roll samples 'runs/my run' --step 13`")


@pytest.mark.parametrize(
    ("event", "end"),
    [
        (ProblemNoticed(step=3, kind="domain_break", metric="m", reason="r", domain="a b"), "--step 3 --domain 'a b'`"),
        (ProblemNoticed(step=3, kind="validation_fall", metric="m", reason="r", domain="a"), "`roll compare runs/x`"),
        (ProblemNoticed(step=3, kind="of_a_later_release", metric="m", reason="r"), "`roll samples runs/x --step 3`"),
    ],
    ids=["domain", "held-out", "unknown"],
)
def test_a_notice_names_the_command_that_shows_examples(event: ProblemNoticed, end: str) -> None:
    assert format_notice(event, Path("runs/x")).endswith(end)


def test_a_journal_without_notices_has_no_problems(tmp_path: Path) -> None:
    """As an earlier release has written it: the format is the same."""
    problems = ProblemList()
    events: list[Event] = [RunStarted(config_digest="x"), RolledBack(to_step=0, reason="resumed")]
    for event in events:
        problems.apply(event)
    assert list(problems.problems()) == []
