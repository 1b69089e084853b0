"""Tasks from Parquet files and Hugging Face datasets."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from roll.config.sources import Fields
from roll.data.tasks import hf, parquet
from roll.errors import ConfigError
from roll.types import Message, Task

pytestmark = pytest.mark.slow

ARROW = importlib.util.find_spec("pyarrow") is not None
DATASETS = importlib.util.find_spec("datasets") is not None
needs_arrow = pytest.mark.skipif(not ARROW, reason="pyarrow is not installed: pip install 'roll-rl[data]'")
needs_datasets = pytest.mark.skipif(not DATASETS, reason="datasets is not installed: pip install 'roll-rl[data]'")
ROWS: list[dict[str, Any]] = [
    {"id": "a", "prompt": [{"role": "user", "content": "1+1="}], "gold": {"answer": "2", "level": 1}},
    {"id": "b", "prompt": [{"role": "user", "content": "1+2="}], "gold": {"answer": "3", "level": 2}},
]
FIELDS = Fields(messages="prompt", answer="gold.answer", metadata={"level": "gold.level"})


def written(file: Path, rows: list[dict[str, Any]]) -> str:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(rows), file)
    return str(file)


@needs_arrow
def test_a_parquet_file_gives_tasks_with_nested_columns(tmp_path: Path):
    found = parquet(written(tmp_path / "sums.parquet", ROWS), FIELDS)
    assert found[1] == Task(
        id="b",
        domain="sums",
        messages=(Message("user", "1+2="),),
        answer="3",
        metadata={"gold": {"answer": "3", "level": 2}, "level": 2},
        seed=2,
    )


@needs_arrow
def test_a_directory_of_parquet_files_is_read_in_the_order_of_their_names(tmp_path: Path):
    for name, prompt in (("2.parquet", "second"), ("1.parquet", "first")):
        written(tmp_path / name, [{"prompt": prompt, "answer": "x"}])
    found = parquet(str(tmp_path))
    assert [(task.id, task.messages[0].content) for task in found] == [("1", "first"), ("2", "second")]


@needs_arrow
def test_faults_in_a_table_have_the_row_number(tmp_path: Path):
    path = written(tmp_path / "t.parquet", [{"prompt": "p", "answer": "1"}, {"prompt": "q", "answer": None}])
    with pytest.raises(ConfigError, match=r"t\.parquet:2: no 'answer'"):
        parquet(path)


@needs_arrow
def test_an_invalid_parquet_file_is_a_one_line_error(tmp_path: Path):
    (tmp_path / "text.parquet").write_text("hello")
    with pytest.raises(ConfigError, match=r"text\.parquet: cannot be read .* it must be a Parquet file") as caught:
        parquet(str(tmp_path / "text.parquet"))
    assert "\n" not in str(caught.value)


def test_a_missing_parquet_file_is_a_config_error(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"nowhere\.parquet: no such file"):
        parquet(str(tmp_path / "nowhere.parquet"))


@pytest.mark.skipif(DATASETS, reason="datasets is installed")
def test_the_error_about_a_missing_package_names_the_extra():
    with pytest.raises(ConfigError, match=r"dataset 'x': needs the package 'datasets'; .*roll\[data\]"):
        hf("x")


@needs_datasets
def test_a_dataset_saved_on_disk_gives_the_tasks_of_one_split(tmp_path: Path):
    import datasets

    saved = datasets.DatasetDict(
        train=datasets.Dataset.from_list(ROWS), test=datasets.Dataset.from_list([{**ROWS[0], "id": "t"}])
    )
    saved.save_to_disk(str(tmp_path / "sums"))
    found = hf(str(tmp_path / "sums"), split="train", fields=FIELDS)
    assert [(task.id, task.answer, task.domain) for task in found] == [("a", "2", "sums"), ("b", "3", "sums")]
    with pytest.raises(ConfigError, match=r"has the splits train, test \(got none\); set split to one of them"):
        hf(str(tmp_path / "sums"), fields=FIELDS)
    with pytest.raises(
        ConfigError, match=r"\[test\]:1: neither 'prompt' nor 'messages'|\[test\]:1: 'prompt' must be text"
    ):
        hf(str(tmp_path / "sums"), split="test")


@needs_datasets
def test_a_dataset_saved_as_one_split_has_no_other(tmp_path: Path):
    import datasets

    datasets.Dataset.from_list(ROWS).save_to_disk(str(tmp_path / "one"))
    assert len(hf(str(tmp_path / "one"), fields=FIELDS)) == 2
    with pytest.raises(ConfigError, match="was saved as one split"):
        hf(str(tmp_path / "one"), split="train", fields=FIELDS)


@needs_datasets
def test_a_local_copy_of_a_hub_dataset_is_read(tmp_path: Path):
    (tmp_path / "train.jsonl").write_text('{"prompt": "p", "answer": "1"}\n{"prompt": "q", "answer": "2"}\n')
    found = hf(str(tmp_path), split="train")
    assert [(task.id, task.answer) for task in found] == [("1", "1"), ("2", "2")]
    with pytest.raises(ConfigError, match=r"cannot be loaded \(Unknown split"):
        hf(str(tmp_path), split="test")
    with pytest.raises(ConfigError, match=r"has the splits train \(got none\)"):
        hf(str(tmp_path))


@needs_datasets
def test_a_directory_without_a_dataset_is_a_one_line_error(tmp_path: Path):
    with pytest.raises(ConfigError, match="cannot be loaded") as caught:
        hf(str(tmp_path))
    assert "\n" not in str(caught.value)
