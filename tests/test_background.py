"""A training in the background: its steps can be iterated, drawn and stopped, and its tables are those of the run."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import roll
from roll.types import Task

pytestmark = pytest.mark.slow

CONFIG: dict[str, Any] = {
    "name": "tiny",
    "deterministic": True,
    "threads": 1,
    "steps": 2,
    "model": {
        "shape": {"alphabet": "0123456789+=", "hidden": 32, "layers": 1, "heads": 2, "mlp": 64, "max_seq_len": 64}
    },
    "algorithm": "grpo",
    "tasks": [{"name": "sums", "data": {"kind": "arithmetic", "count": 40}, "reward": "exact"}],
    "rollout": {"groups_per_step": 2, "group_size": 2, "max_seq_len": 32, "max_new_tokens": 4},
    "validation": {
        "tasks": [{"name": "sums", "data": {"kind": "arithmetic", "split": "held_out", "count": 4}, "reward": "exact"}]
    },
    "tracking": {"tensorboard": False},
}


def test_the_rows_of_a_background_training_are_those_of_its_metrics(tmp_path: Path) -> None:
    training = roll.start(CONFIG, directory=tmp_path)
    rows = list(training)
    assert [row["step"] for row in rows] == [0, 1, 2] and not training.running
    lines = roll.metrics(training.directory)
    assert [{name: value for name, value in line.items() if name != "time"} for line in lines] == rows
    assert training.result().finished and training.result().directory == training.directory
    assert list(training) == rows, "every iteration starts at the first row"
    assert repr(training) == f"Training({str(tmp_path / 'tiny')!r}, ended, step 2)"


def test_it_returns_at_once_and_runs_inside_an_event_loop(tmp_path: Path) -> None:
    async def cell() -> roll.Training:
        return roll.start(CONFIG, directory=tmp_path)

    assert asyncio.run(cell()).result().finished


def test_stop_finishes_the_step_and_a_later_start_resumes(tmp_path: Path) -> None:
    async def slow(task: Task, response: str) -> float:
        await asyncio.sleep(0.01)
        return 0.5

    more: dict[str, Any] = {"rewards": {"sums": slow}, "directory": tmp_path}
    training = roll.start(CONFIG, steps=1000, **more)
    try:
        next(row for row in training if row["step"] == 1)
        with pytest.raises(roll.ConfigError, match="another training runs in this process; stop it"):
            roll.start(CONFIG, name="second", **more)
    finally:
        stopped = training.stop()
    assert not stopped.finished and 1 <= stopped.steps < 1000 and stopped.checkpoint is not None
    again = roll.start(CONFIG, steps=stopped.steps + 2, resume=True, **more)
    assert [row["step"] for row in again] == [stopped.steps + 1, stopped.steps + 2] and again.result().finished


def test_a_process_that_ends_leaves_a_run_that_can_be_resumed(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    options = {"directory": str(tmp_path), "steps": 100_000, "checkpoint.every": 1}
    lines = [
        f"import roll; training = roll.start({CONFIG!r}, **{options!r})",
        "next(row for row in training if row['step'] == 3)",
        "print('over')",
    ]
    program.write_text("\n".join(lines), encoding="utf-8")
    ended = subprocess.run([sys.executable, str(program)], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout.splitlines()[-1], ended.stderr) == (0, "over", "")
    done = roll.metrics(tmp_path / "tiny")[-1]["step"]
    assert roll.resume(tmp_path / "tiny", steps=done + 1).finished


def test_the_error_of_a_run_is_raised_by_its_iteration(tmp_path: Path) -> None:
    def broken(task: Task, response: str) -> float:
        raise ValueError("no score today")

    training = roll.start(CONFIG, rewards={"sums": broken}, directory=tmp_path)
    with pytest.raises(roll.RollError, match="no score today"):
        list(training)
    with pytest.raises(roll.RollError):
        training.result()
    assert "failed after step 0" in repr(training)
    with pytest.raises(roll.ConfigError, match="did you mean 'steps'"):
        roll.start(CONFIG, stepz=1)


def test_curves_and_tables_hold_what_the_run_recorded(tmp_path: Path) -> None:
    training = roll.start(CONFIG, directory=tmp_path)
    result = training.result()
    svg = training.plot("reward/mean")._repr_svg_()
    assert svg.startswith("<svg") and ">reward/mean</text>" in svg and svg != training.plot().svg
    with pytest.raises(roll.ConfigError, match="plot: no metric 'reward/maen' in this run"):
        training.plot("reward/maen")
    table = roll.metrics_frame(result.directory)
    assert list(table.index) == [0, 1, 2] and table["reward/mean"][2] == result.metrics["reward/mean"]
    samples = roll.samples_frame(result.directory, step=2)
    assert len(samples) == 4 and set(samples["step"]) == {2}
    assert len(roll.samples_frame(result.directory, domain="none of this name")) == 0


def test_without_pandas_a_table_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 0}\n', encoding="utf-8")
    script = f"import sys, roll; sys.modules['pandas'] = None; roll.metrics_frame({str(tmp_path)!r})"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    last = ended.stderr.strip().splitlines()[-1]
    assert last == "roll.errors.ConfigError: frame: needs the package pandas; pip install 'roll-rl[notebook]'"
