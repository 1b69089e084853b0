"""Comparing runs: curves, numbers, differing keys, and responses before and after."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roll.errors import ConfigError
from roll.journal.events import StepStarted, WeightsUpdated
from roll.journal.store import Journal
from roll.report.compare import compare_runs
from roll.report.compare_page import comparison_page, format_comparison
from roll.report.held_out import read_attempts, save_attempts
from roll.types import Finish, Message, Score, Segment, Status, Task, Trajectory, Turn


def attempt(text: str, reward: float, task: str = "t") -> Trajectory:
    ids = np.array([ord(letter) for letter in text], np.int32)
    turn = Turn(
        observation=np.zeros(0, np.int32),
        sampled=ids,
        sampler_logprobs=np.zeros(len(ids), np.float32),
        versions=np.zeros(len(ids), np.int32),
        finish=Finish.STOP,
    )
    return Trajectory(
        task=Task(id=task, domain="math", messages=(Message("user", f"<{task}>?"),), answer="4"),
        sibling=0,
        segments=(Segment(turns=(turn,)),),
        status=Status.FINISHED,
        score=Score(reward),
    )


def decode(ids: Any) -> str:
    return "".join(chr(id) for id in ids)


def make(directory: Path, *, lr: float, rewards: list[float], accuracy: dict[int, float]) -> Path:
    """A run with one metrics line per step, from step 0 on."""
    directory.mkdir()
    (directory / "config.yaml").write_text(
        f"name: {directory.name}\nactor_train: {{optimizer: {{lr: {lr}}}}}\nsteps: 2\n"
    )
    lines = [{"step": step, "time": 60.0 * step, "reward/mean": reward} for step, reward in enumerate(rewards, 1)]
    lines = [{"step": 0, "time": 0.0}, *lines]
    lines = [
        line | ({"validation/accuracy": accuracy[line["step"]]} if line["step"] in accuracy else {}) for line in lines
    ]
    (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for step, value in accuracy.items():
        attempts = [attempt(f"{directory.name} at {step}", value), attempt("same", 0.0, "other")]
        save_attempts(directory / "held_out", decode, step, {"held_out": attempts})
    return directory


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    return [
        make(tmp_path / "a", lr=0.5, rewards=[0.0, 0.25], accuracy={0: 0.0, 1: 0.5, 2: 0.5}),
        make(tmp_path / "b", lr=0.25, rewards=[0.5, 0.75], accuracy={0: 0.0, 2: 1.0}),
    ]


def test_two_runs_have_their_numbers_side_by_side_with_the_difference(runs: list[Path]):
    found = compare_runs(runs, 3)
    assert [run.curves["reward"] for run in found.runs] == [[(1, 0.0), (2, 0.25)], [(1, 0.5), (2, 0.75)]]
    assert [run.curves["held-out"] for run in found.runs] == [[(0, 0.0), (1, 0.5), (2, 0.5)], [(0, 0.0), (2, 1.0)]]
    assert found.config == {"actor_train.optimizer.lr": [0.5, 0.25]}
    rows = {line[:18].strip(): line.split()[-3:] for line in format_comparison(found).splitlines()}
    assert rows["reward, last steps"] == ["0.25", "0.75", "+0.5"]
    assert rows["held-out, last"] == ["0.5", "1", "+0.5"]
    assert (rows["minutes"], rows["steps"]) == (["2.0", "2.0", "+0.0"], ["2", "2", "+0"])


def test_minutes_have_one_decimal_and_steps_none(runs: list[Path]):
    text = (runs[1] / "metrics.jsonl").read_text()
    (runs[1] / "metrics.jsonl").write_text(text.replace('"time": 120.0', '"time": 74073.4812'))
    rows = {line[:18].strip(): line.split()[-3:] for line in format_comparison(compare_runs(runs, 0)).splitlines()}
    assert rows["minutes"] == ["2.0", "1234.6", "+1232.6"]


def test_an_empty_list_of_one_run_is_no_difference_beside_the_entries_of_the_other(runs: list[Path]):
    for run, tasks in zip(runs, ("[]", "[{name: sums, filters: []}]"), strict=True):
        with (run / "config.yaml").open("a") as file:
            file.write(f"validation: {{tasks: {tasks}}}\nfilters: {'[]' if tasks == '[]' else 'null'}\n")
    assert compare_runs(runs, 0).config == {
        "actor_train.optimizer.lr": [0.5, 0.25],
        "validation.tasks.0.name": [None, "sums"],
        "filters": [[], None],
    }


def test_the_table_of_curves_has_one_row_per_step_of_a_short_run(runs: list[Path]):
    lines = format_comparison(compare_runs(runs, 0)).splitlines()
    assert [line.split() for line in lines[2:5]] == [
        ["0", "-", "0.000", "-", "0.000"],
        ["1", "0.000", "0.500", "0.500", "-"],
        ["2", "0.250", "0.500", "0.750", "1.000"],
    ]


def test_responses_of_the_first_and_the_last_validation_stand_side_by_side(runs: list[Path]):
    found = compare_runs(runs, 3)
    first, other = found.tasks  # the task whose reward changed comes first
    assert [(change.first_step, change.last_step) for change in first] == [(0, 2), (0, 2)]
    assert [(change.before["response"], change.after["response"]) for change in first] == [
        ("a at 0", "a at 2"),
        ("b at 0", "b at 2"),
    ]
    assert other[0].before["id"] == "other" and len(compare_runs(runs, 1).tasks) == 1
    text = format_comparison(found)
    assert f"--- {runs[1]}, step 2: reward 1\n  b at 2" in text and "reference: 4" in text and "prompt: <t>?" in text


def test_one_run_alone_is_compared_before_and_after(runs: list[Path]):
    found = compare_runs(runs[:1], 3)
    assert found.config == {} and found.runs[0].numbers["held-out, first"] == 0.0
    assert [change.after["response"] for change in found.tasks[0]] == ["a at 2"]
    assert "difference" not in format_comparison(found)


def test_without_validations_tasks_of_several_steps_are_compared(runs: list[Path]):
    run = runs[0]
    shutil.rmtree(run / "held_out")
    journal = Journal(run / "journal.db")
    for step, text in ((1, "x"), (2, "y")):
        journal.record_trajectory(step, attempt(text, float(step), "again"))
        journal.record_trajectory(10 + step, attempt("z", 0.0, f"once {step}"))
        journal.record(StepStarted(step=step, groups=(step, 10 + step)))
        journal.record(WeightsUpdated(step=step, refused=False))
    journal.flush()
    ((change,),) = compare_runs([run], 3).tasks  # while the run writes
    assert (change.before["response"], change.after["response"]) == (str(ord("x")), str(ord("y")))  # no tokenizer
    assert (change.first_step, change.last_step, change.after["reward"]) == (1, 2, 2.0)
    journal.close()


def test_the_page_has_both_curves_and_escapes_texts(runs: list[Path]):
    text = comparison_page(compare_runs(runs, 3))
    assert text.count("<svg") == 2 and "&lt;t&gt;?" in text and "<t>" not in text
    assert "<script" not in text and "src=" not in text and "href=" not in text


def test_only_the_first_and_the_newest_validation_stay_and_later_ones_than_the_metrics_do_not_count(runs: list[Path]):
    assert list(read_attempts(runs[0] / "held_out", 2)) == [0, 2]
    assert list(read_attempts(runs[0] / "held_out", 1)) == [0]
    assert compare_runs([runs[0]], 3).to_json()["tasks"][0][0]["before"]["prompt"] == "<t>?"


def test_other_directories_are_refused_with_one_line(tmp_path: Path, runs: list[Path]):
    (tmp_path / "photos").mkdir()
    for path, message in (
        (tmp_path / "nowhere", "nowhere: no such directory; give the directory of a run"),
        (tmp_path / "photos", r"photos: not the directory of a run \(no config.yaml\)"),
    ):
        with pytest.raises(ConfigError, match=message):
            compare_runs([runs[0], path], 3)
    with pytest.raises(ConfigError, match="a: given twice; name each run once"):
        compare_runs([runs[0], runs[0]], 3)
    (runs[1] / "metrics.jsonl").write_text('{"step": 1, "time": 1.0}\n')
    with pytest.raises(ConfigError, match="b: no step with a reward or a validation yet"):
        compare_runs(runs, 3)
    (runs[1] / "metrics.jsonl").write_text("")
    with pytest.raises(ConfigError, match="b: no step with a reward or a validation yet"):
        compare_runs(runs, 3)
