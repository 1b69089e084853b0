"""Half of a surrogate pair, which UTF-8 cannot encode, in ids, responses and reasons."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from roll.data.fields import PLAIN, task_from
from roll.errors import ConfigError
from roll.journal.packing import pack, unpack
from roll.report.attempts import write_file, write_rows
from roll.rewards.result import RewardFault, RewardResult
from roll.types import Status, Task, Trajectory

HALF = "\ud83d"
ROW = {"id": f"t{HALF}", "response": f"x{HALF}", "answer": f"x{HALF}"}


@pytest.mark.slow
@pytest.mark.parametrize("to_file", [True, False])
def test_roll_score_reads_and_writes_it_without_loss(tmp_path: Path, to_file: bool):
    (tmp_path / "rows.jsonl").write_text(json.dumps(ROW) + "\n")
    output = ["--output", "scores.jsonl"] if to_file else []
    command = [sys.executable, "-m", "roll", "score", "rows.jsonl", "--reward", "exact", "--workers", "0", *output]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False, timeout=300)
    assert result.returncode == 0, result.stderr.decode()
    line = (tmp_path / "scores.jsonl").read_bytes() if to_file else result.stdout
    row = json.loads(line.decode("utf-8"))
    assert (row["id"], row["score"]) == (f"t{HALF}", 1.0)


def test_rows_of_attempts_are_written_without_loss(tmp_path: Path):
    write_rows(tmp_path / "attempts.jsonl", [{"id": f"t{HALF}", "response": "é"}])
    text = (tmp_path / "attempts.jsonl").read_text(encoding="utf-8")
    assert json.loads(text) == {"id": f"t{HALF}", "response": "é"}
    write_file(tmp_path / "page.html", f"<p>{HALF}</p>", option="--html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == r"<p>\ud83d</p>"


@pytest.mark.parametrize(
    "row",
    [
        {"id": HALF, "prompt": "p", "answer": "1"},
        {"prompt": f"p{HALF}", "answer": "1"},
        {"prompt": "p", "answer": {"parts": ["1", HALF]}},
        {"prompt": "p", "answer": "1", "note": {HALF: 1}},
    ],
)
def test_a_task_with_it_is_refused_in_one_line(row: dict[str, object]):
    with pytest.raises(ValueError, match=r"half of a surrogate pair \(got .*\); remove it"):
        task_from(row, PLAIN, number=1, domain="d")


def test_pairs_and_other_characters_are_accepted():
    task = task_from(json.loads('{"prompt": "\\ud83d\\ude00 é", "answer": "1"}'), PLAIN, number=1, domain="d")
    assert task.messages[0].content == "\U0001f600 é"


def test_the_journal_stores_a_reason_that_quotes_it_and_refuses_such_a_task():
    task = Task(id="t", domain="d")
    failed = Trajectory(task=task, sibling=0, segments=(), status=Status.REWARD_FAILED, reason=f"got {HALF}")
    assert unpack(pack(failed).body).reason == r"got \ud83d"
    with pytest.raises(ConfigError, match="cannot be recorded"):
        pack(
            Trajectory(task=Task(id=HALF, domain="d"), sibling=0, segments=(), status=Status.REWARD_FAILED, reason="r")
        )


def test_the_reason_of_a_failed_reward_can_be_encoded():
    assert RewardResult.failure(RewardFault.REWARD, f"got {HALF}").reason == r"got \ud83d"
