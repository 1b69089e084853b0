"""`roll score`: a file of responses, any reward, a line for each."""

import contextlib
import gzip
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from roll.cli import main

pytestmark = pytest.mark.slow

ROWS = [
    {"id": "sum", "prompt": "1+1=", "answer": "2", "response": "2"},
    {"id": "product", "messages": [{"role": "user", "content": "2*3="}], "answer": "6", "responses": ["5", "6"]},
    {"answer": ["four", "4"], "reply": "four"},
]
REWARD = """\
import time
from roll.types import Score

def score(task, reply, *, scale=1.0):
    if reply == "hang":
        time.sleep(1000)
    if reply == "raise":
        raise RuntimeError("no")
    return Score(scale * len(reply), {"colour": task.metadata.get("colour", 0.0)}, f"{len(reply)} characters")
"""


class Said:
    """What a call of the command line came to."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        out, err = io.StringIO(), io.StringIO()
        self.code: Any = 0
        with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                main(["score", *arguments])
            except SystemExit as ended:
                self.code = ended.code or 0
        self.out, self.err = out.getvalue(), err.getvalue()

    @property
    def lines(self) -> list[dict[str, Any]]:
        assert self.code == 0, self.err
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def scores(self) -> list[Any]:
        return [line["score"] for line in self.lines]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "replies.jsonl", *ROWS)
    return tmp_path


def write(file: Path, *rows: Any) -> None:
    file.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))


def test_every_reply_has_its_line_in_the_order_of_the_file_and_the_end_is_a_summary(folder: Path):
    said = Said(folder, "replies.jsonl", "--reward", "exact", "--workers", "0")
    assert said.lines[1] == {
        "line": 2, "id": "product", "response": 0,
        "outcome": "scored", "score": 0.0, "parts": {}, "comment": "", "fault": None, "reason": "",
    }  # fmt: skip
    assert [(line["id"], line["response"]) for line in said.lines] == [
        ("sum", 0),
        ("product", 0),
        ("product", 1),
        ("3", 0),
    ]
    assert said.scores == [1.0, 0.0, 1.0, 1.0]
    assert said.err.splitlines()[-1] == "responses: 4; scored: 4, mean 0.7500, at 1: 3 (75.0%)"


def test_scores_go_to_a_file_and_replies_come_from_a_compressed_one(folder: Path):
    (folder / "replies.jsonl.gz").write_bytes(gzip.compress((folder / "replies.jsonl").read_bytes()))
    said = Said(folder, "replies.jsonl.gz", "--reward", "exact", "--workers", "0", "--output", "scores.jsonl")
    assert said.code == 0 and said.out == ""
    assert [json.loads(line)["score"] for line in (folder / "scores.jsonl").open()] == [1.0, 0.0, 1.0, 1.0]


def test_a_reward_in_the_current_folder_gets_its_options_and_renamed_fields(folder: Path):
    (folder / "beside_score.py").write_text(REWARD)
    write(folder / "other.jsonl", {"said": {"text": "abc"}, "hue": 0.5})
    said = Said(
        folder, "other.jsonl", "--reward", "beside_score:score", "--option", "scale=0.5", "--workers", "0",
        "--field", "response=said.text", "--field", "colour=hue",
    )  # fmt: skip
    assert said.lines[0]["score"] == 1.5 and said.lines[0]["parts"] == {"colour": 0.5}
    assert said.lines[0]["comment"] == "3 characters"


def test_several_rewards_can_be_written_as_in_a_file(folder: Path):
    weighted = "[exact, {kind: length, weight: 0.5, low: 1, high: 2, unit: characters}]"
    said = Said(folder, "replies.jsonl", "--reward", weighted, "--workers", "0")
    assert said.scores == [1.5, 0.5, 1.5, 1.0 + 0.5 * said.lines[3]["parts"]["length"]]


def test_failures_are_reported_and_counted_and_the_others_are_scored(folder: Path):
    (folder / "slow_score.py").write_text(REWARD)
    write(folder / "odd.jsonl", *({"reply": reply} for reply in ("a", "hang", "raise", "bb")))
    said = Said(folder, "odd.jsonl", "--reward", "slow_score:score", "--workers", "1", "--timeout", "2")
    assert [line["outcome"] for line in said.lines] == ["scored", "timed_out", "failed", "scored"]
    assert said.scores == [1.0, None, None, 2.0] and said.lines[2]["fault"] == "reward"
    assert f"RuntimeError: no ({folder}/slow_score.py:8)" in said.lines[2]["reason"]
    assert "timed out after 2 s" in said.lines[1]["reason"]
    end = "responses: 4; scored: 2, mean 1.5000, at 1: 2 (100.0%); failed (reward): 1; timed out: 1"
    assert said.err.splitlines()[-1] == end


def test_responses_may_be_called_replies(folder: Path):
    write(folder / "old.jsonl", {"answer": "2", "reply": "2"}, {"answer": "3", "replies": ["2", "3"]})
    assert Said(folder, "old.jsonl", "--reward", "exact", "--workers", "0").scores == [1.0, 0.0, 1.0]


def test_more_replies_than_wait_at_once_are_all_scored_in_order(folder: Path):
    write(folder / "many.jsonl", {"answer": "7", "replies": [str(number % 10) for number in range(600)]})
    said = Said(folder, "many.jsonl", "--reward", "exact", "--workers", "2")
    assert [line["response"] for line in said.lines] == list(range(600))
    assert said.scores == [float(number % 10 == 7) for number in range(600)]


def test_a_reader_that_closes_the_pipe_early_gets_no_traceback(folder: Path):
    write(folder / "many.jsonl", {"answer": "7", "replies": ["7"] * 5000})
    command = [sys.executable, "-m", "roll", "score", "many.jsonl", "--reward", "exact", "--workers", "0"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None and child.stderr is not None
        assert child.stdout.readline()
        child.stdout.close()
        assert "Traceback" not in child.stderr.read()


RUN = """\
model: {shape: {alphabet: "0123456789", max_seq_len: 1024}}
algorithm: grpo
tasks:
  - {name: sums, data: nowhere.jsonl, reward: {kind: 'run_score:score', scale: 3}}
  - {name: game, env: guess_number}
"""


def test_the_reward_of_a_runs_source_is_taken_with_its_options(folder: Path):
    (folder / "run_score.py").write_text(REWARD)
    (folder / "run.yaml").write_text(RUN)
    said = Said(folder, "replies.jsonl", "--run", "run.yaml", "--source", "sums")
    assert said.scores == [3.0, 3.0, 3.0, 12.0]
    for source, what in (("sum", "no source named 'sum'; did you mean 'sums'?"), ("game", "the environment rewards")):
        said = Said(folder, "replies.jsonl", "--run", "run.yaml", "--source", source)
        assert said.code == 2 and what in said.err
    assert "choose one with --source: sums, game" in Said(folder, "replies.jsonl", "--run", "run.yaml").err


def test_every_bad_line_is_reported_with_its_location_and_nothing_is_scored(folder: Path):
    write(
        folder / "bad.jsonl",
        {"reply": "fine"}, "{", "[1]", {"answer": "2"}, {"reply": "a", "responses": ["b"]}, {"response": 3},
        {"replies": []}, {"reply": "a", "prompt": 1}, {"reply": "a", "messages": [{"role": "user"}]},
        {"reply": "a", "seed": -1}, "", "7", {"reply": "a", "prompt": "p", "messages": []},
    )  # fmt: skip
    said = Said(folder, "bad.jsonl", "--reward", "exact", "--output", "scores.jsonl")
    faults = said.err.splitlines()
    assert said.code == 2 and not (folder / "scores.jsonl").exists()
    assert [fault.split(":")[:2] for fault in faults[:10]] == [["bad.jsonl", str(line)] for line in [*range(2, 11), 12]]
    assert "bad.jsonl:2: broken JSON at column 2" in faults[0] and "; put one whole object" in faults[0]
    assert faults[2].startswith(
        "bad.jsonl:4: neither 'response' nor 'responses' (has answer); give one, or name its field"
    )
    assert "5: both 'reply' and 'responses' (has reply, responses); give one" in faults[3]
    assert [fault.split(": ")[1] for fault in faults[4:6]] == [
        "'response' must be text; correct it",
        "'replies' must be a list of texts; correct it",
    ]
    assert faults[10] == "bad.jsonl: 1 more faults; fix these first"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--reward", "exakt"], "--reward: no reward named 'exakt'; did you mean 'exact'?"),
        (["--reward", "length", "--option", "hihg=3"], "--reward: reward 'length' takes no 'hihg'"),
        (["--reward", "exact", "--option", "high"], "'reward.high' is not an override"),
        (["--reward", "{kind: exact, weight: half}"], "--reward: rewards.0.weight: "),
        (["--reward", "exact", "--field", "answer"], "--field: not an assignment (got 'answer'); write name=field"),
        (["--reward", "exact", "--field", "answer=gold"], "replies.jsonl:1: no field 'gold' (has id, prompt, answer, "),
        (["--reward", "exact", "--timeout", "1", "--workers", "0"], "--timeout needs processes"),
        (["--reward", "exact", "--output", "no/where"], "--output no/where: cannot be written"),
        (["--reward", "exact", "--run", "run.yaml"], "give either --reward or --run"),
        ([], "give either --reward or --run"),
    ],
)
def test_an_invalid_request_is_reported_in_one_line(folder: Path, arguments: list[str], said: str):
    found = Said(folder, "replies.jsonl", *arguments)
    assert found.code == 2 and said in found.err and found.out == "" and "Traceback" not in found.err


def test_a_missing_or_empty_file_is_reported(folder: Path):
    (folder / "empty.jsonl").write_text("\n")
    assert "nowhere.jsonl: no such file" in Said(folder, "nowhere.jsonl", "--reward", "exact").err
    assert "empty.jsonl: no responses in it" in Said(folder, "empty.jsonl", "--reward", "exact").err


def test_scoring_imports_no_torch():
    code = "import sys, roll.commands.score; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_field_may_lie_in_a_list(folder: Path) -> None:
    rows = [{"choices": [{"text": "no"}, {"text": "4"}], "gold": ["3", "4"]}]
    write(folder / "nested.jsonl", *rows)
    fields = ["--field", "reply=choices.1.text", "--field", "answer=gold.1"]
    assert Said(folder, "nested.jsonl", "--reward", "exact", *fields, "--workers", "0").scores == [1.0]
    said = Said(folder, "nested.jsonl", "--reward", "exact", "--field", "reply=choices.2.text")
    assert said.code == 2 and "no field 'choices.2.text' (has choices, gold)" in said.err
