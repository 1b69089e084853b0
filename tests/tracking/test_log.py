"""The log of a run: its form, what the terminal shows of it, and what it must not contain."""

import json
import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from roll.tracking.log import LogLevel, LogSettings, announce, controller_log, log_only
from roll.tracking.progress import Progress, bar

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


def test_a_line_in_json_names_the_run_the_process_and_the_newest_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with controller_log(tmp_path / "log", LogSettings(format="json", run="tiny")) as terminal:
        announce("before")
        terminal.origin.write(7, {})
        with terminal.showing(lambda line: pytest.fail("there is no live view")):
            LOG.warning("after\na break")
    entries = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    origin = {"run": "tiny", "role": "controller", "rank": 0}
    assert [{name: value for name, value in each.items() if name != "time"} for each in entries] == [
        {"level": "INFO", **origin, "message": "before"},
        {"level": "WARNING", **origin, "step": 7, "message": "after a break"},
    ]
    out, err = capsys.readouterr()
    assert json.loads(out) == entries[0] and json.loads(err) == entries[1] | {"message": "after\na break"}


def test_progress_in_json_is_one_line_per_step_and_no_live_view(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with controller_log(tmp_path / "log", LogSettings(format="json", run="tiny")):
        progress = Progress(3, "tiny", console=Console(force_terminal=True))
        progress.start()
        for step in (1, 2, 3):
            progress.update(step, {"reward/mean": 0.5})
        progress.note("a notice")
        clock = iter(range(0, 100, 10))
        with bar(20, "validation", clock=lambda: next(clock)) as advance:
            advance(5)
        progress.close()
    messages = [json.loads(line)["message"] for line in capsys.readouterr().out.splitlines()]
    assert [each.partition(" | ")[0] for each in messages] == [
        *("tiny: 3 steps", "step 1/3", "step 2/3", "step 3/3", "a notice", "validation 5/20")
    ]


@pytest.mark.parametrize(
    ("level", "lines"), [("debug", 4), ("info", 3), ("warning", 2), ("error", 1)], ids=lambda value: str(value)
)
def test_lines_below_the_level_are_not_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], level: LogLevel, lines: int
) -> None:
    with controller_log(tmp_path / "log", LogSettings(level=level)):
        LOG.debug("debug")
        announce("info")
        logging.getLogger("other.library").warning("warning")
        LOG.error("error")
    expected = ["debug", "info", "warning", "error"][4 - lines :]
    assert [line.split(" ", 2)[2] for line in (tmp_path / "log").read_text().splitlines()] == expected
    assert "".join(capsys.readouterr()).split() == [each for each in expected if each != "debug"]


@pytest.mark.slow
def test_the_log_of_a_worker_has_the_form_of_the_run(tmp_path: Path) -> None:
    code = (
        "import logging, sys\n"
        "from roll.tracking.log import LogSettings, log_worker\n"
        "settings = LogSettings(format=sys.argv[1], level='info', run='tiny')\n"
        "log_worker('actor_train 1', settings, sys.stderr, 'actor_train 1: process 7 on here')\n"
        "logging.getLogger('roll.engines').info('loaded')\n"
        "logging.getLogger('roll.engines').debug('a detail')\n"
        "logging.getLogger('other').warning('careful')\n"
    )
    for form in ("text", "json"):
        done = subprocess.run([sys.executable, "-c", code, form], capture_output=True, text=True, check=True)
        first, *others = done.stderr.splitlines()
        if form == "text":
            assert first == "actor_train 1: process 7 on here" and all(LINE.match(line) for line in others)
            continue
        entries = [json.loads(line) for line in (first, *others)]
        assert [each["message"] for each in entries] == ["actor_train 1: process 7 on here", "loaded", "careful"]
        assert {(each["run"], each["role"], each["rank"]) for each in entries} == {("tiny", "actor_train", 1)}


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
