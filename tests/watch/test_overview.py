"""The answers of `/overview`: without an index, and joined from parts that are sent as a run grows."""

import json
import math
import os
import random
from pathlib import Path
from typing import Any

import pytest

from roll.journal.events import Event, ProblemEnded, ProblemNoticed, RolledBack, RunEnded
from roll.journal.store import Journal
from roll.tracking.sinks import JsonLines
from roll.types import Trajectory
from roll.watch.folder import RunFolder
from roll.watch.metrics import MetricColumns, SeriesQuery
from roll.watch.overview import describe_overview
from roll.watch.standard_errors import standard_error
from roll.watch.summary import JournalSummary
from roll.watch.view import RunView
from tests.watch.runs import RunWriter, attempt, eventful, serving

NAMES = ("reward/mean", "domain/*/reward", "validation/*", "time/*", "time/other")


def join(older: dict[str, Any] | None, newer: dict[str, Any]) -> dict[str, Any]:
    """The series of two answers, joined as the page joins them."""
    start = newer["from"]
    if older is None or start == 0:
        return newer

    def joined(before: list[Any] | None, after: list[Any] | None) -> list[Any] | None:
        if before is None and after is None:
            return None
        kept = (before or [])[:start]
        return kept + [None] * (start - len(kept)) + (after or [None] * len(newer["step"]))

    series = {
        name: {part: joined(older["series"].get(name, {}).get(part), values) for part, values in points.items()}
        for name, points in newer["series"].items()
    }
    common = {name: joined(older[name], newer[name]) for name in ("step", "time", "tokens")}
    return {**newer, **common, "from": 0, "series": series}


def draw_line(dice: random.Random, step: int) -> dict[str, float]:
    """Metrics of one step; some are missing, begin late, or are not finite."""
    line = {"reward/mean": dice.random(), "reward/std": 0.5, "time/step": 3.0, "time/wait": dice.random()}
    optional = {"trained/groups": 4.0, "domain/a/reward": dice.random(), "domain/a/std": 0.25, "domain/a/groups": 2.0}
    line |= {name: value for name, value in optional.items() if step > 5 and dice.random() < 0.7}
    if step % 7 == 0:
        line |= {"validation/accuracy": dice.random(), "validation/tasks": 8.0, "loss/other": math.nan}
    return line | {"tokens/generated": float(dice.randrange(9))}


@pytest.mark.parametrize("seed", range(5))
def test_answers_since_any_cursor_join_to_the_whole_answer(tmp_path: Path, seed: int) -> None:
    dice, path = random.Random(seed), tmp_path / "metrics.jsonl"
    lines, metrics = JsonLines(path), MetricColumns(path)
    answers: list[dict[str, Any] | None] = [None]
    for step in range(1, 60):
        lines.write(step, draw_line(dice, step))
        if seed == 4 and step == 30:
            lines.truncate_after(20)  # as a resume does
        if dice.random() < 0.5:
            continue
        metrics.update()
        whole = metrics.series(SeriesQuery(names=NAMES, points=20), standard_error)
        older = dice.choice(answers)
        cursor = "" if older is None else older["cursor"]
        newer = metrics.series(SeriesQuery(names=NAMES, points=20, cursor=cursor), standard_error)
        assert join(older, newer) == whole
        answers.append(join(older, newer))
    lines.close()


def test_an_answer_to_a_cursor_is_as_small_for_a_long_run_as_for_a_short_one(tmp_path: Path) -> None:
    sizes: list[int] = []
    for num_steps in (50, 490):
        path = tmp_path / f"{num_steps}.jsonl"
        path.write_text("".join(json.dumps({"step": step, "reward/mean": 0.5}) + "\n" for step in range(num_steps)))
        metrics = MetricColumns(path)
        metrics.update()
        cursor = metrics.series(SeriesQuery(names=NAMES), standard_error)["cursor"]
        with path.open("a") as file:
            file.write(json.dumps({"step": num_steps, "reward/mean": 0.5}) + "\n")
        metrics.update()
        newer = metrics.series(SeriesQuery(names=NAMES, cursor=cursor), standard_error)
        assert newer["from"] == num_steps and newer["step"] == [num_steps]
        sizes.append(len(json.dumps(newer["series"])))
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("cursor", ["", "x", "-", "0-1-1", "--", "a-b-c", "9" * 50])
def test_a_cursor_that_means_nothing_gets_the_whole_answer(tmp_path: Path, cursor: str) -> None:
    (tmp_path / "m.jsonl").write_text('{"step": 1, "reward/mean": 0.5}\n')
    metrics = MetricColumns(tmp_path / "m.jsonl")
    metrics.update()
    assert metrics.series(SeriesQuery(names=NAMES, cursor=cursor), standard_error)["from"] == 0


def test_the_overview_and_the_metrics_need_no_index(tmp_path: Path) -> None:
    eventful(tmp_path / "run")
    with serving(tmp_path) as client:
        for name in ("overview", "overview", "metrics", "series?names=*", "state"):
            client.json(f"/api/runs/run/{name}")
        client.json("/api/compare?runs=run")
        assert client.json("/api/runs/run/state")["index"]["phase"] == "none"
        assert client.settle("run")["index"]["phase"] == "done"


def test_the_overview_tells_notices_once(tmp_path: Path) -> None:
    run = RunWriter(tmp_path / "run")
    run.step(1, run.group(attempt()))
    run.journal.record(ProblemNoticed(step=1, kind="k", metric="m", reason="it fell", domain="math"))
    run.journal.flush()
    folder = RunFolder(tmp_path)
    first = describe_overview(folder.view("run"), 500, "")
    assert [notice["text"] for notice in first["notices"]] == ["it fell"] and first["state"]["notices"] == 1
    assert describe_overview(folder.view("run"), 500, first["cursor"])["notices"] is None
    run.journal.record(ProblemEnded(step=2, kind="k", metric="m", reason="it rose", since=1, domain="math"))
    run.close()
    second = describe_overview(folder.view("run"), 500, first["cursor"])
    assert second["notices"][0]["ended"]["text"] == "it rose" and second["state"]["notices"] == 0


def test_an_answer_that_is_still_right_is_not_sent_again(tmp_path: Path) -> None:
    run = RunWriter(tmp_path / "run")
    run.step(1, run.group(attempt()))
    run.journal.flush()
    with serving(tmp_path) as client:
        first = client.json("/api/runs/run/overview?points=500")
        address = f"/api/runs/run/overview?points=500&cursor={first['cursor']}"
        again = client.json(address)
        assert again == {"cursor": first["cursor"], "position": first["position"], "unchanged": True}
        run.group(attempt())
        run.journal.flush()
        newer = client.json(address)
        assert newer["numbers"]["attempts"] == 2 and newer["cursor"] != first["cursor"]
        run.close()


def contents(summary: JournalSummary) -> dict[str, Any]:
    names = ("position", "domains", "num_trained", "num_failures", "num_notices", "last_notice", "end")
    return {name: getattr(summary, name) for name in names} | {"notices": summary.notices()}


def test_a_summary_that_follows_a_run_equals_one_of_the_whole_journal(tmp_path: Path) -> None:
    """Each row arrives in an update of its own."""
    followed, path = JournalSummary(), tmp_path / "run" / "journal.db"

    class SummarisedJournal(Journal):
        def record(self, event: Event) -> int:
            return self._follow(super().record(event))

        def record_trajectory(self, group: int, trajectory: Trajectory) -> int:
            return self._follow(super().record_trajectory(group, trajectory))

        def _follow(self, id: int) -> int:
            self.flush()
            followed.update(path)
            return id

    eventful(tmp_path / "run", SummarisedJournal)
    journal = Journal(path)
    journal.record(RunEnded(step=4, reason="done"))
    journal.close()
    followed.update(path)
    fresh = JournalSummary()
    fresh.update(path)
    assert contents(followed) == contents(fresh)
    assert (fresh.num_trained, fresh.num_failures) == (5, 1) and fresh.end is not None and fresh.end.reason == "done"
    journal = Journal(path)
    journal.record(RolledBack(to_step=1, reason="again"))
    journal.close()
    followed.update(path)
    assert followed.num_trained == 2


def test_a_file_whose_size_and_time_are_the_same_is_not_read_again(tmp_path: Path) -> None:
    eventful(tmp_path / "run")
    view = RunView("run", tmp_path / "run")
    view.refresh()
    before = contents(view.summary), view.metrics.last()
    for name in ("journal.db", "metrics.jsonl"):
        path = tmp_path / "run" / name
        stat = path.stat()
        with path.open("r+b") as file:
            file.write(b"x" * stat.st_size)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    view.refresh()
    assert view.error is None and (contents(view.summary), view.metrics.last()) == before
    os.utime(tmp_path / "run" / "journal.db")
    view.refresh()
    assert view.error is not None
