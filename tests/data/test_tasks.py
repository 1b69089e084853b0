"""Tasks from files, with every fault in its place, and from seeds."""

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from roll.data.tasks import jsonl, seeds
from roll.errors import ConfigError
from roll.types import Message, Task

GOOD = {"id": "a", "domain": "math", "prompt": "1+1=", "answer": "2"}


def written(directory: Path, *rows: Any, name: str = "tasks.jsonl") -> str:
    text = "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
    file = directory / name
    file.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return str(file)


def faults(directory: Path, *rows: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        jsonl(written(directory, *rows))
    return [line.removeprefix(f"{directory}/") for line in str(caught.value).split("\n")]


def test_a_row_becomes_a_task_and_its_further_fields_metadata(tmp_path: Path):
    found = jsonl(written(tmp_path, {**GOOD, "level": 3, "source": "own"}))
    assert found == [
        Task(
            id="a",
            domain="math",
            messages=(Message("user", "1+1="),),
            answer="2",
            metadata={"level": 3, "source": "own"},
            seed=1,
        )
    ]


def test_a_row_may_have_messages_instead_of_a_prompt(tmp_path: Path):
    messages = [{"role": "system", "content": "add"}, {"role": "user", "content": "1+1="}]
    found = jsonl(written(tmp_path, {"messages": messages, "answer": ["2", "two"]}))
    assert found[0].messages == (Message("system", "add"), Message("user", "1+1="))
    assert found[0].answer == ["2", "two"]


def test_id_seed_and_domain_default_to_line_and_file(tmp_path: Path):
    found = jsonl(written(tmp_path, "", {"prompt": "p", "answer": 0}, name="sums.jsonl.gz"))
    assert (found[0].id, found[0].domain, found[0].seed, found[0].answer) == ("2", "sums", 2, 0)


def test_numbers_and_nesting_beyond_what_json_reads_are_faults_of_their_lines(tmp_path: Path):
    lines = faults(tmp_path, GOOD, f'{{"answer": {"9" * 5000}}}', f'{{"answer": {"[" * 99_999}}}')
    assert [line.partition(" (")[0] for line in lines] == [
        "tasks.jsonl:2: cannot be read",
        "tasks.jsonl:3: cannot be read",
    ]


def test_line_separators_within_a_text_do_not_end_a_row(tmp_path: Path):
    row = json.dumps({**GOOD, "prompt": "one\u2028two\x85three"}, ensure_ascii=False)
    assert jsonl(written(tmp_path, row))[0].messages[0].content == "one\u2028two\x85three"


def test_all_faults_are_raised_at_once_each_with_its_line(tmp_path: Path):
    found = faults(
        tmp_path,
        GOOD,
        '{"id": "b"',
        {"id": "c", "answer": "2"},
        {"id": "d", "prompt": "p"},
        {"id": "e", "prompt": "p", "answer": None},
        {**GOOD},
        [1],
        {"id": "g", "prompt": "p", "messages": [], "answer": "1"},
        {"id": "h", "messages": [{"role": "user"}], "answer": "1"},
        {"id": "i", "prompt": "p", "answer": "1", "seed": "x"},
    )
    assert [line.split(";")[0] for line in found] == [
        "tasks.jsonl:2: broken JSON at column 11 (Expecting ',' delimiter)",
        "tasks.jsonl:3: neither 'prompt' nor 'messages'",
        "tasks.jsonl:4: no 'answer'",
        "tasks.jsonl:5: no 'answer'",
        "tasks.jsonl:6: id 'a' is that of line 1",
        "tasks.jsonl:7: not a JSON object (got list)",
        "tasks.jsonl:8: both 'prompt' and 'messages'",
        "tasks.jsonl:9: a message needs 'role' and 'content' as text (got {'role': 'user'})",
        "tasks.jsonl:10: 'seed' is not a whole number (got 'x')",
    ]
    assert all(";" in line for line in found)


def test_only_the_first_ten_faults_are_listed(tmp_path: Path):
    found = faults(tmp_path, *["{"] * 14)
    assert len(found) == 11
    assert found[-1] == "tasks.jsonl: 4 more faults; fix these first"


@pytest.mark.parametrize("field", ["tests", "instruction_id_list", "rg", "level", "receptacles"])
def test_a_row_with_another_reference_needs_no_answer(tmp_path: Path, field: str):
    found = jsonl(written(tmp_path, {"id": "a", "prompt": "p", field: ["x"]}))
    assert found[0].answer is None and found[0].metadata == {field: ["x"]}


def test_a_row_for_an_environment_needs_no_prompt(tmp_path: Path):
    assert jsonl(written(tmp_path, {"id": "a", "level": "#@$.#"}))[0].messages == ()


def test_unreadable_files_are_one_line_errors(tmp_path: Path):
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe{")
    (tmp_path / "not.jsonl.gz").write_bytes(b"{}")
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(json.dumps(GOOD).encode())[:-9])
    (tmp_path / "empty.jsonl").write_text("\n\n")
    for name, word in {
        "binary.jsonl": "cannot be read",
        "not.jsonl.gz": "cannot be read",
        "cut.jsonl.gz": "cannot be read",
        "empty.jsonl": "no tasks in it",
        "nowhere.jsonl": "no such file",
    }.items():
        with pytest.raises(ConfigError, match=word) as caught:
            jsonl(str(tmp_path / name))
        assert "\n" not in str(caught.value) and name in str(caught.value)


def test_seeds_are_created_on_access():
    found = seeds()
    assert len(found) == 1_000_000
    assert found[7] == Task(id="seed-7", domain="seeds", seed=7)
    assert found[-1].seed == 999_999
    assert [task.seed for task in seeds(3, start=10)] == [10, 11, 12]
    assert [task.seed for task in seeds(9)[2:4]] == [2, 3]


def test_an_empty_range_of_seeds_is_an_error():
    with pytest.raises(ConfigError, match="got count 0"):
        seeds(0)


@pytest.mark.skipif("ROLL_DATA" not in os.environ, reason="ROLL_DATA names no folder with data")
def test_every_training_file_of_the_data_folder_can_be_read():
    folder = Path(os.environ["ROLL_DATA"])
    for name in ("math/svamp_train.jsonl", "code/mbpp_train.jsonl", "agentic/boxoban_unfiltered_valid.jsonl.gz"):
        assert len(jsonl(str(folder / name))) > 100
