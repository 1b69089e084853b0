import json
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from roll.cli import main
from roll.journal.events import (
    GroupAdmitted,
    HackSuspected,
    RolledBack,
    RunStarted,
    StepStarted,
    TokensGenerated,
    WeightsPublished,
    WeightsUpdated,
)
from roll.journal.store import Journal
from roll.types import Finish, Score, Segment, Status, Task, Trajectory, Turn


def run(directory: Path) -> None:
    """One group of one attempt, trained in one step; a generator busy for 3 of 4 seconds."""
    journal = Journal(directory / "journal.db")
    journal.record(RunStarted(config_digest=""))
    began = next(journal.events()).time
    journal.record_span("generator 0", "generate", began, began + 3)
    journal.record_span("generator 0", "idle: groups", began + 3, began + 3.5)
    journal.record_span("trainer", "update", began + 1, began + 4)
    journal.record(WeightsPublished(version=0, step=0, digest="", seconds={"hold": 0.25}))
    journal.record(GroupAdmitted(group=0, task="t", domain="math", birth=0))
    turn = Turn(
        observation=np.zeros(2, np.int32),
        sampled=np.zeros(8, np.int32),
        sampler_logprobs=np.zeros(8, np.float32),
        versions=np.zeros(8, np.int32),
        finish=Finish.STOP,
    )
    trajectory = Trajectory(
        task=Task(id="t", domain="math"),
        sibling=0,
        segments=(Segment(turns=(turn,)),),
        status=Status.FINISHED,
        score=Score(0.5),
    )
    journal.record_trajectory(0, trajectory)
    journal.record(StepStarted(step=1, groups=(0,)))
    journal.record(WeightsUpdated(step=1, refused=False))
    journal.record(TokensGenerated(step=1, tokens=10, unrecorded=0, discarded=1, late=0, bad=0, redispatched=0))
    journal.close()


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 0
    return capsys.readouterr().out


def test_a_report_accounts_for_time_tokens_attempts_and_groups(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run(tmp_path)
    text = said(capsys, "report", str(tmp_path))
    assert text.startswith("time: 4.0 s of wall clock in 1 process; 0.0 s not running\n")
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "generator 0 generate 3.0 75.0 %" in lines
    assert "idle: groups 0.5 12.5 %" in lines
    assert "unaccounted 0.5 12.5 %" in lines and "unaccounted 1.5 18.8 %" in lines  # of one worker, and of both
    assert "trained 8 80.0 % 1 100.0 % 1 100.0 %" in lines
    assert "aborted 1 10.0 % 0 0.0 % 0 0.0 %" in lines
    assert "unaccounted 1 10.0 % 0 0.0 % 0 0.0 %" in lines
    assert "versions: 1 published; 0 requests resumed, 0 tokens prefilled again" in lines
    assert "hold 0.25 0.250" in lines
    assert "0 8 100.0 %" in lines
    assert "trained 1 0.500 8.0 100.0 %" in lines


def test_a_report_with_the_json_option_is_one_json_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run(tmp_path)
    found = json.loads(said(capsys, "report", str(tmp_path), "--json"))
    assert (found["tokens"]["total"], found["tokens"]["unaccounted"]) == (10, 1)
    assert found["time"]["total"]["activity_s"] == {"generate": 3.0, "update": 3.0, "idle: groups": 0.5}
    assert found["time"]["total"]["unaccounted_s"] == pytest.approx(1.5)


def test_a_report_ends_with_notices_about_reward_hacking_in_steps_that_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run(tmp_path)
    with closing(Journal(tmp_path / "journal.db")) as journal:
        for step in (1, 2):
            attempts = (f"{step}.0", f"{step}.1")
            journal.record(HackSuspected(step=step, domain="math", sign="rise", reason="it rose", attempts=attempts))
        journal.record(RolledBack(to_step=1, reason="resumed"))
        journal.record(HackSuspected(step=3, domain="code", sign="rise", reason="it rose"))
    text = said(capsys, "report", str(tmp_path))
    assert text.splitlines()[-3:] == [
        "",
        f"step 1: possible reward hacking in 'math': it rose; see `roll samples {tmp_path} --attempt 1.0,1.1`",
        "step 3: possible reward hacking in 'code': it rose",
    ]
    hacks = json.loads(said(capsys, "report", str(tmp_path), "--json"))["hacks"]
    assert [hack["step"] for hack in hacks] == [1, 3]


def test_a_timeline_is_written_to_the_output_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run(tmp_path)
    target = tmp_path / "trace.json"
    assert said(capsys, "timeline", str(tmp_path), "--output", str(target)) == f"1 attempts: {target}\n"
    assert json.loads(target.read_text())["traceEvents"]


@pytest.mark.parametrize("command", ["resume", "compare", "samples", "report", "timeline", "export"])
def test_a_directory_without_a_run_is_refused_with_the_same_line_by_all_commands(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "photos").mkdir()
    file = "journal.db" if command in ("samples", "report", "timeline") else "config.yaml"
    for name, what in (
        ("nowhere", "no such directory; give the directory of a run, such as runs/demo"),
        ("photos", f"not the directory of a run (no {file}); give one such as runs/demo"),
    ):
        with pytest.raises(SystemExit) as left:
            main([command, str(tmp_path / name)])
        assert left.value.code == 2
        assert capsys.readouterr().err == f"{tmp_path / name}: {what}\n"


@pytest.mark.parametrize("command", ["resume", "report", "samples", "timeline", "export"])
def test_a_run_of_an_older_journal_format_is_refused_in_one_line_and_left_unchanged(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """The format is checked before the configuration, whose keys may have other names by now."""
    path = tmp_path / "journal.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("CREATE TABLE taken (id INTEGER PRIMARY KEY); PRAGMA user_version = 5")
    (tmp_path / "config.yaml").write_text("rollout: {context: 512, slots: 4}\n")
    before = {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()}
    with pytest.raises(SystemExit) as left:
        main([command, str(tmp_path)])
    assert left.value.code == 2
    assert capsys.readouterr().err.splitlines() == [
        f"{path}: written in journal format 5 (this release reads format 10); "
        "use the release that wrote it, or start a new run"
    ]
    after = {entry.name: entry.read_bytes() for entry in tmp_path.iterdir() if entry.name != ".lock"}
    assert after == before
