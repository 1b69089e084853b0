"""What `roll` says of a run before anything of it starts."""

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from roll.commands import train as commands
from roll.config.load import load
from tests.cli.conftest import call

pytestmark = pytest.mark.slow

TEXT = """\
model: {shape: {hidden: 64}}
algorithm: grpo
tasks: [{name: programs, data: arithmetic, reward: {kind: code, sandbox: nowhere}}]
validation: {tasks: [{name: held, data: arithmetic, reward: {kind: code, sandbox: nowhere}}]}
rollout: {max_seq_len: 512}
"""


@pytest.mark.parametrize(
    ("command", "key"), [("train", "tasks"), ("eval", "validation.tasks"), ("sft", "validation.tasks")]
)
def test_a_run_without_the_sandbox_that_it_needs_does_not_start(tmp_path: Path, command: str, key: str) -> None:
    (tmp_path / "run.yaml").write_text(TEXT)
    line = call(tmp_path, command, "run.yaml").fault(2)
    assert f": {key}.0.reward: sandbox: no such option (got 'nowhere')" in line
    assert not (tmp_path / "runs").exists()


def test_replies_are_not_scored_without_it_either(tmp_path: Path) -> None:
    (tmp_path / "replies.jsonl").write_text('{"reply": "1"}\n')
    outcome = call(tmp_path, "score", "replies.jsonl", "--reward", "code", "--option", "sandbox=nowhere")
    assert outcome.fault(2).startswith("--reward: sandbox: no such option (got 'nowhere')")


def test_staleness_without_a_correction_is_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "run.yaml").write_text(TEXT)
    commands._warn(load(tmp_path / "run.yaml").run)
    assert not caplog.messages
    commands._warn(load(tmp_path / "run.yaml", ["rollout.max_staleness=1"]).run)
    (line,) = caplog.messages
    assert line.startswith("warning: rollout.max_staleness is 1, and the correction is none: tokens up to 1 step old")


def test_a_port_for_metrics_that_is_taken_is_refused_before_anything_starts(roll: Callable, folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = roll("train", "run.yaml", f"metrics.port={port}").fault(2)
        assert line.startswith(f"metrics: 127.0.0.1:{port}: cannot listen there (Address already in use); choose ")
        assert roll("sft", "run.yaml", f"metrics.port={port}").fault(2) == line
    assert [path.name for path in (folder / "runs").glob("*/*")] == [".lock", ".lock"]
