"""The command line of `roll plan`."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from roll.cli import app
from roll.errors import ConfigError


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "roll plan: needs a run file and --cluster"),
        (["examples/arithmetic.yaml"], "roll plan: needs a run file and --cluster"),
        (["examples/arithmetic.yaml", "--check", "runs/x"], "roll plan: --check reads a run that has ended"),
        (["examples/arithmetic.yaml", "--cluster", "8xH200", "--budget", "0"], "--budget: at least one device"),
        (["examples/arithmetic.yaml", "--cluster", "8xH200", "--goal", "fast"], "--goal: no goal named 'fast'"),
        (["--check", "runs/none"], "runs/none: no such directory"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["plan", *arguments])
    assert isinstance(result.exception, ConfigError)
    assert str(result.exception).startswith(message) and "\n" not in str(result.exception)


def test_an_existing_file_is_not_replaced(tmp_path: Path) -> None:
    output = tmp_path / "own.yaml"
    output.write_text("steps: 1\n", encoding="utf-8")
    arguments = ["plan", "examples/arithmetic.yaml", "--cluster", "2xcpu", "--output", str(output)]
    result = CliRunner().invoke(app, arguments)
    assert "exists and is not a plan" in str(result.exception)
