"""`roll audit rewards`, and the audit at the start of a run."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import TEXT, call

RUN = """\
model: {shape: {hidden: 64}}
algorithm: grpo
rollout: {max_seq_len: 512}
tasks:
  - {name: sums, data: sums.jsonl, reward: [exact, {kind: length, high: 9, weight: 0.1}]}
  - {name: judged, data: sums.jsonl, reward: {kind: judge, chat: {url: "http://127.0.0.1:9/v1", model: m}}}
  - {name: mixed, data: sums.jsonl, reward: ["rewards_of_audit:contains", {kind: remote, url: "http://127.0.0.1:9/"}]}
  - {name: lake, env: frozen_lake}
validation:
  tasks: [{name: held, data: sums.jsonl, reward: exact}]
"""
REWARDS = """\
def contains(task, response):
    return float(str(task.answer) in response)

def fails_on_blanks(task, response):
    return 1 / len(response)
"""
ROWS: list[dict[str, Any]] = [{"id": f"sum-{n}", "prompt": f"{n}+{n}=", "answer": str(2 * n)} for n in range(11, 16)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "run.yaml").write_text(RUN)
    (tmp_path / "tiny.yaml").write_text(TEXT)
    (tmp_path / "rewards_of_audit.py").write_text(REWARDS)
    write(tmp_path, ROWS)
    return tmp_path


def write(folder: Path, rows: list[dict[str, Any]]) -> None:
    (folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_every_reward_of_a_run_has_its_line_and_a_finding_sets_the_exit_code(folder: Path) -> None:
    outcome = call(folder, "audit", "rewards", "run.yaml")
    assert outcome.code == 1 and outcome.err == ""
    lines = {tuple(line.split()[:2]): line for line in outcome.out.splitlines()}
    assert lines["sums", "exact"].split()[2:6] == ["5", "5", "of", "5"] and lines["sums", "exact"].endswith("ok")
    assert "not a verifier: measures the length alone" in lines["sums", "length"]
    assert "skipped: calls a model or a service; add --all" in lines["judged", "judge"]
    assert "skipped: calls a model or a service" in lines["mixed", "remote"]
    assert "cheats that score: two answers (5 of 5)" in lines["mixed", "rewards_of_audit:contains"]
    assert "the environment gives the rewards" in lines["lake", "-"]
    assert lines["validation", "held"].endswith("ok")
    assert "tasks of sums.jsonl that accept a cheat: 'sum-11', 'sum-12'" in outcome.out


def test_a_clean_run_exits_with_code_0_and_json_has_every_cheat(folder: Path) -> None:
    outcome = call(folder, "audit", "rewards", "tiny.yaml", "--rows", "4", "--json")
    assert outcome.code == 0
    training, held_out = json.loads(outcome.out)
    assert (training["domain"], held_out["domain"]) == ("sums", "validation held_out")
    assert training["tasks"] == training["references"] == training["passed"] == 4
    assert len(training["cheats"]) > 15 and set(training["cheats"].values()) == {0.0} and training["findings"] == []
    assert json.loads(call(folder, "audit", "rewards", "tiny.yaml", "--all-rows", "--json").out)[1]["tasks"] == 20


def test_rows_whose_reference_fails_are_listed_by_file_and_id(folder: Path) -> None:
    reply = [{"role": "user", "content": "1+1="}, {"role": "assistant", "content": "The answer is 2."}]
    write(folder, [*ROWS, {"id": "chat", "messages": reply, "answer": "2"}])
    outcome = call(folder, "audit", "rewards", "tiny.yaml", "tasks=[{name: new, data: sums.jsonl, reward: exact}]")
    assert outcome.code == 1
    assert "1 of 6 tasks fail with their own reference" in outcome.out
    assert "sums.jsonl: task 'chat': the assistant's last message scores 0" in outcome.out


def test_an_unknown_option_names_the_key_to_write(folder: Path) -> None:
    outcome = call(folder, "audit", "rewards", "tiny.yaml", "--steps", "3")
    assert outcome.code == 2 and "write steps=3" in outcome.err


@pytest.mark.slow
def test_training_warns_of_its_rows_and_a_resumed_run_does_not_repeat_it(folder: Path) -> None:
    rewards = "[{kind: regex, pattern: '[0-9]*', whole: true}, 'rewards_of_audit:fails_on_blanks']"
    task = f"tasks=[{{name: new, data: sums.jsonl, reward: {rewards}}}]"
    outcome = call(folder, "train", "tiny.yaml", task, "steps=1")
    assert outcome.code == 0, outcome
    assert "rewards audited on 5 tasks" in outcome.out
    assert "warning: new: reward 'regex': cheats that score: empty (5 of 5)" in outcome.out
    assert "on tasks 'sum-11', 'sum-12', 'sum-13'" in outcome.out
    resumed = call(folder, "resume", "runs/tiny", "steps=2")
    assert resumed.code == 0 and "audited" not in resumed.out


@pytest.mark.slow
def test_the_audit_at_the_start_can_be_off_and_changes_no_result(folder: Path) -> None:
    for name, num in (("with", 8), ("without", 0)):
        outcome = call(folder, "train", "tiny.yaml", "steps=2", f"name={name}", f"rewards.audit={num}")
        assert outcome.code == 0 and ("audited" in outcome.out) == (num > 0)
    metrics = [(folder / "runs" / name / "metrics.jsonl").read_text().splitlines() for name in ("with", "without")]
    first, second = ([without_times(json.loads(line)) for line in lines] for lines in metrics)
    assert first == second


def without_times(line: dict[str, float]) -> dict[str, float]:
    return {
        name: value for name, value in line.items() if name.startswith(("reward/", "loss/", "validation/", "length/"))
    }
