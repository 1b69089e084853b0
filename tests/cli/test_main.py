import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

TEXT = """\
model: {shape: {hidden: 64}}
algorithm: grpo
tasks: [{name: sums, data: arithmetic, reward: exact}]
rollout: {max_seq_len: 512}
"""

MAIN_WITH = """
import sys
from roll import cli
from roll.errors import ConfigError, RunStopped

@cli.app.command()
def fail() -> None:
    raise {error}

sys.argv = ["roll", "fail"]
cli.main()
"""


def python(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    root = str(Path(__file__).parents[2])
    environment = {"PYTHONPATH": root, "PATH": "/usr/bin:/bin", "COLUMNS": "200"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


def roll(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return python("-m", "roll.cli", *arguments, folder=folder)


def failing(error: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return python("-c", MAIN_WITH.format(error=error), folder=folder)


def test_check_prints_ok_and_a_summary(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(TEXT)
    result = roll("check", "run.yaml", "steps=3", folder=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        "run.yaml: ok",
        "run: 3 steps of 8 groups x 8 attempts, grpo, staleness at most 0, tasks sums",
        "inline: actor_train, actor_infer in one process",
    ]


def test_check_reports_each_fault_in_one_line_and_exits_with_2(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(TEXT + "stesp: 3\nseed: -1\n")
    result = roll("check", "run.yaml", folder=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.splitlines() == [
        "run.yaml:5: unknown key 'stesp'; did you mean 'steps'?",
        "run.yaml:6: seed: must be greater than or equal to 0 (got -1)",
    ]


def test_a_fault_that_only_names_show_exits_with_2_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(TEXT.replace("exact", "exakt"))
    result = roll("train", "run.yaml", folder=tmp_path)
    assert result.returncode == 2
    assert result.stderr == "run.yaml:3: tasks.0.reward: no reward named 'exakt'; did you mean 'exact'?\n"
    assert [path.name for path in tmp_path.iterdir()] == ["run.yaml"]


def test_explain_needs_no_data_to_be_there(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(TEXT.replace("arithmetic", "nowhere.jsonl"))
    result = roll("explain", "run.yaml", folder=tmp_path)
    assert result.returncode == 0
    assert "64 = 8 groups (tasks) x 8 attempts each" in result.stdout


def test_version_and_help_are_printed(tmp_path: Path) -> None:
    assert roll("--version", folder=tmp_path).stdout.startswith("roll 0.")
    listed = roll("--help", folder=tmp_path).stdout
    for command in ("train", "resume", "check", "explain", "eval", "sft", "score", "samples", "compare", "bench"):
        assert f"\n  {command} " in listed


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        ("ConfigError('a: wrong\\nb: wrong')", 2, "a: wrong\nb: wrong\n"),
        ("RunStopped('cannot go on')", 3, "cannot go on\n"),
        ("KeyboardInterrupt", 130, ""),
        (
            "OSError(28, 'No space left on device', 'runs/x')",
            3,
            "disk is full: No space left on device (runs/x); free some space, then 'roll resume' the run\n",
        ),
    ],
)
def test_an_error_with_a_fate_has_an_exit_code_and_no_traceback(
    tmp_path: Path, error: str, code: int, said: str
) -> None:
    result = failing(error, tmp_path)
    assert (result.returncode, result.stderr) == (code, said)


@pytest.mark.parametrize("error", ["AssertionError('a bug')", "OSError(5, 'Input/output error')"])
def test_a_bug_crashes_with_its_traceback(tmp_path: Path, error: str) -> None:
    result = failing(error, tmp_path)
    assert result.returncode == 1
    assert result.stderr.startswith("Traceback (most recent call last)")


def test_importing_and_checking_imports_nothing_heavy(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(TEXT)
    script = """
import sys
import roll
assert set(sys.modules).isdisjoint({"torch", "ray", "transformers", "numpy", "pydantic"})
from roll.cli import app
app(["check", "run.yaml"], standalone_mode=False)
app(["explain", "run.yaml"], standalone_mode=False)
assert set(sys.modules).isdisjoint({"torch", "ray", "transformers", "tensorboard", "math_verify"})
"""
    result = python("-c", script, folder=tmp_path)
    assert result.returncode == 0, result.stderr
