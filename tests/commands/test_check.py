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


@pytest.mark.parametrize(
    ("env", "why"),
    [
        ("{kind: tool_use, exact: true, tools: []}", "'tools' must be a non-empty list"),
        ("{kind: frozen_lake, size: 0}", "size"),
        ("{kind: sokoban, split: 2}", "no split named 2; known: all, held_out, train"),
        ("{kind: 'envs_of_check:Env', path: missing}", "missing: no such file"),
    ],
)
def test_an_environment_that_cannot_be_built_is_reported(folder: Path, env: str, why: str) -> None:
    (folder / "envs_of_check.py").write_text(
        "from roll.errors import ConfigError\n\n"
        "class Env:\n"
        "    def __init__(self, task, path): raise ConfigError(f'{path}: no such file')\n"
        "    async def start(self): ...\n"
        "    async def step(self, response): ...\n"
        "    async def close(self): ...\n"
    )
    outcome = call(folder, "check", "run.yaml", f"tasks=[{{name: new, data: 'data_of_check:good', env: {env}}}]")
    assert why in outcome.fault(2)


@pytest.mark.parametrize(
    ("reward", "why"),
    [
        ("{kind: code, sandbox: nowhere}", "sandbox: no such option (got 'nowhere')"),
        ("[exact, {kind: regex, pattern: '('}]", "source 'new': reward 'regex' on task '1': pattern '('"),
        ("{kind: format, thinking: a, answer: a}", "tags are empty or the same"),
        ("{kind: judge, chat: {url: 'http://127.0.0.1:1', model: m}, judges: 0}", "judge"),
    ],
)
def test_a_reward_that_cannot_be_used_is_reported(folder: Path, reward: str, why: str) -> None:
    tasks = f"tasks=[{{name: new, data: 'data_of_check:good', reward: {reward}}}]"
    outcome = call(folder, "check", "run.yaml", "deterministic=false", tasks)
    assert why in outcome.fault(2)


def test_a_prompt_with_a_character_outside_the_alphabet_is_reported_by_the_check(folder: Path) -> None:
    (folder / "rows.jsonl").write_text(json.dumps({"prompt": "1+Ω=", "answer": "2"}) + "\n")
    arguments = ("run.yaml", "tasks=[{name: new, data: rows.jsonl, reward: exact}]")
    assert "task '1': the alphabet has no 'Ω'; add it" in call(folder, "check", *arguments).fault(2)
    assert "'Ω'" in call(folder, "train", *arguments).fault(2)


@pytest.mark.parametrize("reward", ["{kind: code, sandbox: 'none: I trust this code'}", "[exact, code]"])
def test_a_row_whose_tests_run_nothing_is_named(folder: Path, reward: str) -> None:
    good = {"prompt": "1", "answer": "1", "tests": ["assert f(1) == 2"]}
    empty = {"prompt": "2", "answer": "1", "id": "empty", "tests": "def run_tests():\n    assert f(1) == 2"}
    (folder / "code.jsonl").write_text("".join(json.dumps(row) + "\n" for row in (good, empty, good | {"id": "last"})))
    tasks = f"tasks=[{{name: new, data: code.jsonl, reward: {reward}}}]"
    message = call(folder, "check", "run.yaml", "deterministic=false", tasks).fault(2)
    assert "row 2: task 'empty': the tests run nothing: nothing calls 'run_tests'" in message
    assert "row 1" not in message and "row 3" not in message


def test_a_run_that_does_not_fit_on_this_machine_is_valid_and_says_so(folder: Path) -> None:
    outcome = call(folder, "check", "run.yaml", "model.shape.mlp=38400000")
    assert outcome.code == 0 and "not on this machine: actor_" in outcome.out


def test_valid_data_of_a_function_passes(folder: Path) -> None:
    outcome = call(folder, "check", "run.yaml", "tasks=[{name: new, data: 'data_of_check:good', reward: exact}]")
    assert outcome.code == 0, outcome.err


def test_data_on_another_machine_is_not_read(folder: Path) -> None:
    data = "tasks=[{name: new, data: rows.jsonl, reward: exact}]"
    assert call(folder, "check", "run.yaml", data, "--cluster", "1xH100").code == 0


def test_a_check_reads_the_first_rows_of_a_large_file_only_unless_told_to_read_all(folder: Path) -> None:
    rows = "".join(json.dumps({"prompt": f"{number}+1=", "answer": "1"}) + "\n" for number in range(1000))
    (folder / "large.jsonl").write_text(f"{rows}not JSON\n")
    run = ("check", "run.yaml", "tasks=[{name: new, data: large.jsonl, reward: exact}]")
    assert call(folder, *run).code == 0
    assert call(folder, *run, "--all-rows").fault(2).startswith("large.jsonl:1001: broken JSON at column 1 (")


@pytest.mark.slow
def test_checking_data_imports_no_torch() -> None:
    code = "import sys, roll.commands.check; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_data_of_the_launch_example_can_be_read() -> None:
    check_data(load(Path(__file__).parents[2] / "examples" / "launch" / "run.yaml").run)
