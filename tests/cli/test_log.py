"""`controller.log` of whole runs."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import TEXT
from tests.tracking.test_log import LINE

pytestmark = pytest.mark.slow


def test_a_run_writes_its_events_and_a_resumed_one_appends_to_them(roll: Callable, made: Path) -> None:
    before = (made / "controller.log").read_text()
    assert all(LINE.match(line) for line in before.splitlines())
    events = [line.split(" ", 2)[2] for line in before.splitlines()]
    assert events[0].startswith("roll ") and events[-3].startswith("model: ")
    for event in (
        "loading ",
        "engines of actor_train: 1 of 1 are ready",
        "step 4/4 | reward ",
        "checkpoint of step 4: ",
        "version 4: serves the weights of step 4",
    ):
        assert any(each.startswith(event) for each in events), event
    assert roll("resume", "runs/tiny", "steps=5", "logging.format=json").code == 0
    after = (made / "controller.log").read_text()
    assert after.startswith(before)
    added = [json.loads(line)["message"] for line in after.removeprefix(before).splitlines()]
    assert any(each.startswith("step 5/5 | reward ") for each in added)
    checkpoint = "runs/tiny/checkpoints/step-4"
    assert [each for each in added if "step-4" in each][:2] == [
        f"loading {checkpoint}",
        "restoring the state of step-4",
    ]


def test_the_error_that_ends_a_run_is_its_last_line(roll: Callable, folder: Path) -> None:
    (folder / "bad.py").write_text("def reward(task, response):\n    raise ValueError('no luck')\n")
    (folder / "run.yaml").write_text(TEXT.replace("reward: exact}\nrollout", "reward: 'bad:reward'}\nrollout"))
    line = roll("train", "run.yaml").fault(3)
    assert (folder / "runs/tiny/controller.log").read_text().endswith(f" ERROR {line}\n")


FALLS = """\
calls = []


def reward(task, response):
    calls.append(response)
    return 0.4 if len(calls) <= 6 * 16 else 0.0
"""


def test_a_reward_that_collapses_is_reported_once_on_the_terminal_and_in_the_log(roll: Callable, folder: Path) -> None:
    (folder / "falls.py").write_text(FALLS)
    (folder / "run.yaml").write_text(TEXT.replace("reward: exact}\nrollout", "reward: 'falls:reward'}\nrollout"))
    outcome = roll(
        "train", "run.yaml", "steps=13", "validation.every=0", "validation.at_start=false", "checkpoint.every=0"
    )
    line = (
        "step 9: reward collapse: the reward fell to 0.160, from 0.400 at step 5 (means of up to 5 steps); since then "
    )
    assert outcome.code == 0 and outcome.out.count(line) == 1 and outcome.out.count("reward collapse") == 1
    log = (folder / "runs/tiny/controller.log").read_text()
    assert log.count(f" WARNING {line}") == 1
