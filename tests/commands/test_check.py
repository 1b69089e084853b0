"""`roll check` reads data as the start of a run would."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from roll.commands.check import check_data
from roll.config.load import load
from tests.cli.conftest import TEXT, call

FUNCTIONS = """\
from roll.types import Message, Task

def good():
    return [Task(id="1", domain="x", messages=(Message("user", "1+1="),), answer="2")]

def bad():
    raise KeyError("question")

def rows():
    return [{"prompt": "1+1=", "answer": "2"}]

def nothing():
    return []
"""
BAD = {
    "missing.jsonl": "no such file: missing.jsonl",
    "rows.jsonl": "rows.jsonl:2: no 'answer'; add what a right attempt is compared with",
    "{kind: arithmetic, digits: 0}": "arithmetic: ",
    "'data_of_check:bad'": "dataset 'data_of_check:bad': KeyError: 'question' (",
    "'data_of_check:rows'": "dataset 'data_of_check:rows': must return tasks (got dict); fix its code",
    "'data_of_check:nothing'": "source 'new' has no tasks; give it some",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "run.yaml").write_text(TEXT)
    (tmp_path / "data_of_check.py").write_text(FUNCTIONS)
    rows = [{"prompt": "1+1=", "answer": "2"}, {"prompt": "1+2="}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


@pytest.mark.parametrize("data", BAD)
@pytest.mark.parametrize("key", ["tasks", "validation.tasks", "sft.tasks"])
def test_data_that_cannot_be_read_is_reported_in_one_line(folder: Path, key: str, data: str) -> None:
    outcome = call(folder, "check", "run.yaml", f"{key}=[{{name: new, data: {data}, reward: exact}}]")
    assert BAD[data] in outcome.fault(2) and outcome.out == ""


@pytest.mark.slow
@pytest.mark.parametrize("data", [data for data in BAD if data != "missing.jsonl"])
def test_training_reports_the_line_of_the_check(folder: Path, data: str) -> None:
    run = ("run.yaml", f"tasks=[{{name: new, data: {data}, reward: exact}}]")
    assert call(folder, "train", *run).fault(2) == call(folder, "check", *run).fault(2)


def test_valid_data_of_a_function_passes(folder: Path) -> None:
    outcome = call(folder, "check", "run.yaml", "tasks=[{name: new, data: 'data_of_check:good', reward: exact}]")
    assert outcome.code == 0, outcome.err


def test_data_on_another_machine_is_not_read(folder: Path) -> None:
    data = "tasks=[{name: new, data: rows.jsonl, reward: exact}]"
    assert call(folder, "check", "run.yaml", data, "--cluster", "1xH100").code == 0


def test_a_check_reads_the_first_rows_of_a_large_file_only(folder: Path) -> None:
    rows = "".join(json.dumps({"prompt": f"{number}+1=", "answer": "1"}) + "\n" for number in range(1000))
    (folder / "large.jsonl").write_text(f"{rows}not JSON\n")
    assert call(folder, "check", "run.yaml", "tasks=[{name: new, data: large.jsonl, reward: exact}]").code == 0


@pytest.mark.slow
def test_checking_data_imports_no_torch() -> None:
    code = "import sys, roll.commands.check; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_data_of_the_launch_example_can_be_read() -> None:
    check_data(load(Path(__file__).parents[2] / "examples" / "launch" / "run.yaml").run)
