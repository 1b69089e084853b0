"""`roll run`: stages of real commands, in processes of their own."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from roll.cli import app, main
from roll.commands.distill import DISTILL
from roll.commands.dpo import DPO
from roll.commands.reward import REWARD
from roll.commands.sft import SUFFIX as SFT_SUFFIX
from roll.commands.stages import STATE, SUFFIXES
from roll.journal.events import RunStarted
from roll.journal.store import Reader
from roll.tracking.sinks import read_lines
from tests.cli.conftest import TEXT

ROOT = Path(__file__).parents[2]
STAGES = """\
name: two
directory: out
stages:
  - {name: start, command: sft, file: run.yaml, set: {sft.steps: 2}}
  - {name: samples, command: rollout, file: run.yaml, num: 12, agent: 'calculator:Adds', min_reward: 1}
  - name: tuned
    command: sft
    file: run.yaml
    set: {sft.steps: 2, sft.tasks: [{name: own, data: "{samples.samples}", reward: exact}]}
"""
AGENT = """
class Adds:
    def __init__(self, task):
        self.answer = task.answer if task.id.endswith(("0", "2", "4")) else "7"

    def __call__(self, messages):
        return self.answer
"""
"""Answers some tasks rightly."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "run.yaml").write_text(TEXT, encoding="utf-8")
    (tmp_path / "stages.yaml").write_text(STAGES, encoding="utf-8")
    (tmp_path / "calculator.py").write_text(AGENT, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return tmp_path


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as caught:
        main(["run", "stages.yaml", *words])
    assert caught.value.code == 2
    return capsys.readouterr().err


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1
    path.write_text(text.replace(old, new), encoding="utf-8")


@pytest.mark.slow
def test_stages_run_in_order_and_only_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main_exits(["run", "stages.yaml"])
    base = folder / "out" / "two"
    rows = [json.loads(line) for line in (base / "samples" / "samples.jsonl").read_text().splitlines()]
    assert 0 < len(rows) < 12 and {row["reward"] for row in rows} == {1.0}
    config = (base / "tuned-sft" / "config.yaml").read_text()
    assert "out/two/start-sft/model" in config and "out/two/samples/samples.jsonl" in config
    summary = (base / "summary.md").read_text()
    assert f"{len(rows)} samples" in summary and "| tuned | sft |" in summary and "![start (sft)](start.svg)" in summary
    model = (base / "tuned-sft" / "model" / "model.safetensors").stat().st_mtime_ns

    before = capsys.readouterr()
    assert f"model: {Path('out/two/tuned-sft/model')}" in before.out
    main_exits(["run", "stages.yaml"])
    assert capsys.readouterr().out.count("is finished: ") == 3
    assert (base / "tuned-sft" / "model" / "model.safetensors").stat().st_mtime_ns == model

    edit(folder / "stages.yaml", "num: 12", "num: 13")
    line = refusal(capsys)
    assert line.startswith("stages.yaml:5: stage samples was run with other settings; change them back, or add --from")
    edit(folder / "stages.yaml", "num: 13", "num: 12")
    (base / "tuned-sft" / "model").rename(base / "elsewhere")
    assert "the result of stage tuned is gone; add --from tuned to repeat it" in refusal(capsys)
    edit(folder / "calculator.py", "class Adds:", "class Subtracts:")
    assert "samples ended with exit code 2" in refusal(capsys, "--from", "samples")
    assert not (base / "samples" / "samples.jsonl").exists()
    edit(folder / "calculator.py", "class Subtracts:", "class Adds:")
    capsys.readouterr()
    main_exits(["run", "stages.yaml"])
    assert capsys.readouterr().out.count("is finished: ") == 1, "the stage that failed and the one after it run again"
    assert (base / "tuned-sft" / "model" / "model.safetensors").is_file()


def main_exits(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code in (0, None)


@pytest.mark.slow
def test_an_interrupt_reaches_the_stage_and_the_next_call_resumes_it(folder: Path) -> None:
    (folder / "stages.yaml").write_text(
        "name: one\ndirectory: out\nstages:\n  - {name: rl, command: train, file: run.yaml, set: {steps: 30}}\n"
    )
    run = folder / "out/one/rl"
    command = [sys.executable, "-m", "roll", "run", "stages.yaml"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: any(run.glob("checkpoints/step-*")), process)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        text = process.stderr.read()
    assert process.returncode == 130 and "stage 1 of 1: rl ended with exit code 130; repeat the command" in text
    record = json.loads((folder / "out/one" / STATE).read_text())["stages"]["rl"]
    assert record["finished"] is False and record["seconds"] > 0
    assert subprocess.run(command, stdout=subprocess.DEVNULL, check=True).returncode == 0
    with closing(Reader(run / "journal.db")) as reader:
        started = [entry.event.resumed_from for entry in reader.events(RunStarted)]
    assert started[0] is None and len(started) == 2 and started[1] is not None and started[1] > 0
    assert len(read_lines(run / "metrics.jsonl")) >= 30


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[Any]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)


def test_all_faults_of_all_run_files_are_reported_before_the_first_stage(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(folder / "stages.yaml", "file: run.yaml, num: 12", "file: other.yaml, num: 12")
    edit(folder / "stages.yaml", "{sft.steps: 2}}\n", "{sft.stepz: 2}}\n")
    lines = refusal(capsys).splitlines()
    assert lines[0].startswith("stages.yaml:4: stage start: command line: unknown key 'sft.stepz'")
    assert lines[1].startswith("stages.yaml:5: stage samples: no such file: other.yaml") and len(lines) == 2
    assert not (folder / "out").exists()


@pytest.mark.parametrize(
    ("command", "section"), [("dpo", "dpo"), ("distill", "distill"), ("reward", "reward_training")]
)
def test_a_stage_with_a_section_of_its_own_needs_it(
    folder: Path, capsys: pytest.CaptureFixture[str], command: str, section: str
) -> None:
    edit(folder / "stages.yaml", "  - name: tuned\n    command: sft", f"  - name: tuned\n    command: {command}")
    assert f"stages.yaml:6: stage tuned: run.yaml: {section}: missing section" in refusal(capsys)


def test_from_names_a_stage_that_exists_and_has_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert refusal(capsys, "--from", "tunde") == "--from: no stage is named 'tunde'; did you mean 'tuned'?\n"
    assert "--from tuned: no stage has run in out/two yet" in refusal(capsys, "--from", "tuned")


def test_a_damaged_state_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "out/two").mkdir(parents=True)
    (folder / "out/two" / STATE).write_text("[]")
    assert f"out/two/{STATE}: not the state of `roll run`" in refusal(capsys)


def test_directories_are_those_of_the_commands() -> None:
    assert SUFFIXES["sft"] == SFT_SUFFIX
    assert all(SUFFIXES[command.name] == f"-{command.name}" for command in (DPO, DISTILL, REWARD))


def test_the_help_names_the_options() -> None:
    assert "--from" in CliRunner().invoke(app, ["run", "--help"]).output
