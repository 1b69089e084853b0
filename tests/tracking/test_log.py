"""The log of a run: its form, what the terminal shows of it, and what it must not contain."""

import json
import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest

from roll.tracking.log import LogSettings, announce, controller_log, log_only

LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (INFO|WARNING|ERROR) \S")
LOG = logging.getLogger("roll.tests")


def test_lines_have_a_time_and_a_level_and_are_appended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "controller.log"
    for line in ("first", "second"):
        with controller_log(path):
            LOG.info("the %s line\nhas a break", line)
    LOG.info("nobody logs this")
    lines = path.read_text().splitlines()
    assert [line.partition(" INFO ")[2] for line in lines] == [
        "the first line has a break",
        "the second line has a break",
    ]
    assert all(LINE.match(line) for line in lines)
    assert capsys.readouterr() == ("", "")


@pytest.mark.slow
def test_a_library_that_configures_logging_does_not_end_the_log(tmp_path: Path) -> None:
    code = (
        "import logging.config, pathlib\n"
        "from roll.tracking.log import announce, controller_log\n"
        f"with controller_log(pathlib.Path({str(tmp_path / 'log')!r})):\n"
        "    logging.config.dictConfig({'version': 1, 'disable_existing_loggers': False})\n"
        "    announce('ready')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert (tmp_path / "log").read_text().endswith(" INFO ready\n")


def test_on_request_each_line_is_a_json_object(tmp_path: Path) -> None:
    with controller_log(tmp_path / "log", LogSettings(format="json", run="tiny")):
        LOG.warning("a \u00fcber warning")
    entry = json.loads((tmp_path / "log").read_text(encoding="utf-8"))
    assert (entry["level"], entry["message"]) == ("WARNING", "a \u00fcber warning") and entry["time"].endswith("Z")


def test_the_terminal_shows_warnings_of_any_library_and_announced_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: list[str] = []
    with controller_log(tmp_path / "log") as terminal:
        announce("loading")
        LOG.info("a detail")
        logging.getLogger("other.library").warning("careful")
        log_only("the end", logging.ERROR)
        with terminal.showing(shown.append):
            LOG.warning("above the live view")
            announce("as is this")
    assert capsys.readouterr() == ("loading\n", "careful\n") and shown == ["above the live view", "as is this"]
    assert [line.split(" ", 2)[2] for line in (tmp_path / "log").read_text().splitlines()] == [
        *("loading", "a detail", "careful", "the end", "above the live view", "as is this")
    ]


def test_keys_of_the_environment_are_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_API_KEY", "sk-0123456789")
    with controller_log(tmp_path / "log"):
        LOG.info("status 401 for sk-0123456789")
    assert (tmp_path / "log").read_text().endswith("status 401 for ***\n")


def test_a_full_disk_costs_lines_of_the_log_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log").symlink_to("/dev/full")
    with controller_log(tmp_path / "log"):
        LOG.info("lost")
    assert capsys.readouterr() == ("", "")
