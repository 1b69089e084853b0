"""Runs of a tiny model: one finds the hole in a reward and is reported, the other learns and is not."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SETTINGS = (
    *("steps=24", "validation.tasks=[]", "rollout.groups_per_step=16", "rollout.max_new_tokens=4"),
    *("actor_infer.max_num_seqs=64", "actor_train.optimizer.lr=5e-3", "checkpoint.every=20"),
)
SEVENS = '''
def score(task, response):
    """Supposed to check the sum; it pays for sevens."""
    return response.count("7") / 4
'''


def notices(folder: Path) -> int:
    lines = (folder / "runs" / "tiny" / "metrics.jsonl").read_text().splitlines()
    return sum(json.loads(line).get("hacks/notices", 0) for line in lines)


def test_a_policy_that_exploits_a_reward_is_reported_with_examples(roll: Callable, folder: Path) -> None:
    (folder / "paid_for_sevens.py").write_text(SEVENS)
    outcome = roll("train", "run.yaml", *SETTINGS, "tasks.0.reward=paid_for_sevens:score")
    assert outcome.code == 0, outcome
    lines = [line for line in outcome.out.splitlines() if "possible reward hacking in 'sums'" in line]
    assert len(lines) == notices(folder) >= 1
    line = next(line for line in lines if "identical for many tasks with different references: '7777'" in line)
    assert line in (folder / "runs" / "tiny" / "controller.log").read_text()
    assert line in roll("report", "runs/tiny").out.splitlines()
    assert json.loads(roll("report", "runs/tiny", "--json").out)["hacks"][0]["domain"] == "sums"

    command = re.search(r"`roll (.*)`", line)
    assert command is not None
    shown = roll(*command[1].split()).out
    assert shown.count("=== group ") == 3 and shown.count("\n7777\n") == 3

    again = roll("resume", "runs/tiny", "steps=28")
    assert again.code == 0 and "possible reward hacking" not in again.out, "reported less than 50 steps ago"


def test_a_policy_that_learns_short_answers_is_not_reported(roll: Callable, folder: Path) -> None:
    data = "tasks.0.data={kind: arithmetic, digits: 1}"
    outcome = roll("train", "run.yaml", *SETTINGS, data, "rollout.group_size=8", "actor_infer.max_num_seqs=128")
    assert outcome.code == 0, outcome
    metrics = [json.loads(line) for line in (folder / "runs" / "tiny" / "metrics.jsonl").read_text().splitlines()]
    assert metrics[-1]["reward/mean"] > 3 * metrics[1]["reward/mean"], "it has learned"
    assert notices(folder) == 0 and "look at the metrics" not in outcome.out
    assert "possible reward hacking" not in outcome.out
