"""The limit of turns follows the environments of a run."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from roll.cli import app
from roll.config.load import load
from roll.config.schema import Run
from roll.config.turns import turn_limit, turn_warnings

EXAMPLE = Path(__file__).parents[2] / "examples" / "sokoban.yaml"


def run_of(tmp_path: Path, *overrides: str) -> Run:
    path = tmp_path / "run.yaml"
    path.write_text(EXAMPLE.read_text(encoding="utf-8"), encoding="utf-8")
    return load(path, overrides).run


@pytest.mark.parametrize(
    ("overrides", "limit"),
    [
        ((), 32),
        (("tasks.0.env.max_turns=40",), 40),
        (("tasks.0.env.max_turns=4",), 32),
        (("tasks.0.env={kind: alfworld}",), 50),
        (("validation.tasks.0.env={kind: alfworld}",), 50),
        (("rollout.max_turns=7",), 7),
        (("tasks.0.env.max_turns=40", "rollout.max_turns=64"), 64),
        (('tasks.0.env="absent_module:Env"',), 32),
    ],
)
def test_the_default_limit_is_the_largest_of_the_environments(tmp_path: Path, overrides: tuple[str, ...], limit: int):
    run = run_of(tmp_path, *overrides)
    assert turn_limit(run) == limit
    if run.rollout.max_turns is None:
        assert turn_warnings(run) == []


def test_an_explicit_limit_below_that_of_an_environment_is_reported_in_one_line(tmp_path: Path):
    (line,) = turn_warnings(run_of(tmp_path, "rollout.max_turns=10", "tasks.0.env.max_turns=40"))
    assert re.search(r"'room' after 10 of the environment's 40 turns; .* tasks\.0\.env\.max_turns", line)
    assert turn_warnings(run_of(tmp_path, "rollout.max_turns=40", "tasks.0.env.max_turns=40")) == []


def test_roll_check_shows_the_warning(tmp_path: Path):
    run_of(tmp_path)
    quiet = CliRunner().invoke(app, ["check", str(tmp_path / "run.yaml"), "tasks.0.env.max_turns=40"])
    warned = CliRunner().invoke(app, ["check", str(tmp_path / "run.yaml"), "rollout.max_turns=5"])
    assert quiet.exit_code == warned.exit_code == 0, quiet.output + warned.output
    assert "warning: rollout.max_turns" not in quiet.output
    assert "warning: rollout.max_turns" in warned.output
