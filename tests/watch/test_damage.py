"""Journals that cannot be read: one line each, and the run stays as it is."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from roll.errors import ConfigError
from roll.watch.folder import RunFolder
from tests.watch.runs import RunWriter, attempt, eventful, serving, viewing, wait_until


def test_a_run_in_another_format_is_refused_alone_and_marked_in_a_folder(tmp_path: Path) -> None:
    eventful(tmp_path / "good")
    eventful(tmp_path / "old")
    with closing(sqlite3.connect(tmp_path / "old" / "journal.db")) as connection:
        connection.execute("PRAGMA user_version = 3")
    with pytest.raises(ConfigError, match="written in journal format 3") as refusal:
        RunFolder(tmp_path / "old")
    assert len(str(refusal.value).splitlines()) == 1
    with serving(tmp_path) as client:
        states = {run["run"]: run for run in client.json("/api/runs")["runs"]}
        assert states["good"]["state"] != "unreadable" and states["good"]["error"] is None
        assert states["old"]["state"] == "unreadable" and "format 3" in states["old"]["error"]
        answer = client.get("/api/runs/old/samples")
        assert answer.status == 503 and "format 3" in answer.json["error"]
        assert client.json("/api/runs/old/overview")["series"]["step"] == [1, 2, 3, 3, 4]
        assert b"format 3" in client.get("/plain/old").body


def test_a_damaged_journal_is_shown_as_far_as_it_can_be_read(tmp_path: Path) -> None:
    run = RunWriter(tmp_path / "run")
    for number in range(300):
        run.group(attempt(prompt=f"{number} {'x' * 500}"))
    run.close()
    journal = tmp_path / "run" / "journal.db"
    content = bytearray(journal.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 16384] = b"\xff" * 16384
    journal.write_bytes(content)
    with viewing(tmp_path / "run") as view:
        state = wait_until(lambda: view.salvaged and view.state())
        wait_until(lambda: view.state()["index"]["phase"] == "done")
        assert "damaged" in state["salvaged"] and "rows can be read" in state["salvaged"]
        assert view.index is not None and 100 < view.index.num_samples <= 300
    assert journal.read_bytes() == bytes(content)


def test_a_journal_that_another_program_has_locked_is_read_once_it_is_free(tmp_path: Path) -> None:
    eventful(tmp_path / "run")
    with closing(sqlite3.connect(tmp_path / "run" / "journal.db", isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("PRAGMA journal_mode = DELETE")
        other.execute("BEGIN EXCLUSIVE")
        with serving(tmp_path) as client:
            answer = client.get("/api/runs/run/samples")
            assert answer.status == 503 and len(answer.json["error"].splitlines()) == 1
            assert client.get("/plain/run").status == 200
            other.execute("COMMIT")
            other.close()
            wait_until(lambda: client.get("/api/runs/run/samples").status == 200)


def test_a_run_without_a_journal_shows_its_metrics(tmp_path: Path) -> None:
    eventful(tmp_path / "run")
    (tmp_path / "run" / "journal.db").unlink()
    with serving(tmp_path) as client:
        (run,) = client.json("/api/runs")["runs"]
        assert run["journal"] is False and run["step"] == 4
        overview = client.json("/api/runs/run/overview")
        assert overview["series"]["series"]["reward/mean"]["mean"][0] == 0.5 and overview["domains"] == []
        assert client.get("/api/runs/run/samples").status == 503


def test_a_file_that_is_no_journal_is_named(tmp_path: Path) -> None:
    eventful(tmp_path / "run")
    (tmp_path / "run" / "journal.db").write_bytes(b"no journal" * 1000)
    with pytest.raises(ConfigError, match="not a journal"):
        RunFolder(tmp_path / "run")


@pytest.mark.parametrize(("name", "fault"), [("missing", "no such directory"), ("empty", "no run here")])
def test_a_place_without_a_run_is_refused_in_one_line(tmp_path: Path, name: str, fault: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=fault) as refusal:
        RunFolder(tmp_path / name)
    assert len(str(refusal.value).splitlines()) == 1
