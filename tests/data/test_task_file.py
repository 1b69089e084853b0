"""Large task files: rows are read when they are drawn, and are the same tasks as in a file that is read whole."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from roll.config.sources import Curriculum, Fields
from roll.data.fields import PLAIN, tasks_from
from roll.data.mixture import Mixture, MixturePart
from roll.data.screening import ScreeningCounts, screen
from roll.data.task_file import LARGE, NUM_CHECKED, TaskFile, index_file, numbered_objects
from roll.data.tasks import jsonl
from roll.errors import ConfigError
from roll.types import Message, Task

ODD = (
    '\ufeff{"prompt": "first", "answer": "1"}\r\n'
    "\n"
    '{"prompt": "größer\u2028", "answer": "2", "domain": "own"}\n'
    "  \t\r\n"
    '  {"prompt": "indented", "answer": "3", "id": "c", "seed": 7}\n'
    '{"prompt": "last, without a newline", "answer": "4"}'
)


def row(number: int, **others: Any) -> dict[str, Any]:
    return {"prompt": f"{number}+1=", "answer": str(number + 1), "level": number % 7, **others}


def written(folder: Path, rows: Sequence[Any]) -> Path:
    file = folder / "tasks.jsonl"
    file.write_text("".join((each if isinstance(each, str) else json.dumps(each)) + "\n" for each in rows))
    return file


def large(folder: Path, **replaced: Any) -> TaskFile:
    """A file with 10,002 rows; `line_N` replaces the row of line N."""
    rows = [replaced.get(f"line_{number + 1}", row(number)) for number in range(LARGE + 2)]
    tasks = jsonl(str(written(folder, rows)))
    assert isinstance(tasks, TaskFile)
    return tasks


def whole(file: Path, fields: Fields = PLAIN) -> list[Task]:
    return tasks_from(numbered_objects(file), fields, where=str(file), domain="tasks", unit="line")


def order(tasks: Sequence[Task], **kwargs: Any) -> list[Task]:
    mixture = Mixture([MixturePart(name="d", tasks=tasks, **kwargs)], seed=3)
    return [mixture.draw().task for _ in range(50)]


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 64, 4096])
def test_rows_are_the_tasks_of_a_whole_read_for_any_chunks(tmp_path: Path, chunk: int) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_bytes(ODD.encode())
    indexed, expected = index_file(file, PLAIN, domain="tasks", chunk=chunk), whole(file)
    assert [indexed[index] for index in range(len(indexed))] == list(indexed) == expected
    assert [task.id for task in indexed] == ["1", "3", "c", "6"]
    assert (
        indexed[-1] == expected[-1]
        and list(indexed[1:3]) == expected[1:3]
        and list(indexed.select([2, 0]))
        == [
            expected[2],
            expected[0],
        ]
    )


def test_a_large_file_draws_the_tasks_that_a_whole_read_would(tmp_path: Path) -> None:
    tasks = large(tmp_path)
    expected = whole(tasks.file)
    assert order(tasks) == order(expected)
    curriculum = Curriculum(by="level", steps=100)
    assert order(tasks, curriculum=curriculum) == order(expected, curriculum=curriculum)


def test_a_fault_is_raised_with_its_line_when_its_row_is_drawn(tmp_path: Path) -> None:
    tasks = large(tmp_path, line_5000="{broken", line_6000=row(0, id="7"), line_7000={"prompt": "no answer"})
    assert tasks[6].id == "7"
    for line, what in {5000: "broken JSON at column 2", 6000: "id '7' is that of line 7", 7000: "no 'answer'"}.items():
        with pytest.raises(ConfigError, match=rf"tasks\.jsonl:{line}: {what}") as caught:
            tasks[line - 1]
        assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"tasks\.jsonl:5000: broken JSON"):
        list(tasks)


def test_text_that_is_not_utf_8_is_a_fault_of_its_line(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_bytes(json.dumps(row(1)).encode() + b'\n{"prompt": "\xff"}\n')
    with pytest.raises(ConfigError, match=r"tasks\.jsonl:2: not UTF-8 text \(invalid start byte at byte 13\)"):
        index_file(file, PLAIN, domain="d")[1]


def test_faults_of_the_first_rows_are_raised_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        large(tmp_path, line_2="{", line_900={"prompt": "p"}, line_5000="{")
    assert [line.split(": ")[0].rpartition(":")[2] for line in str(caught.value).splitlines()] == ["2", "900"]


def test_a_file_that_changes_during_a_run_is_not_read(tmp_path: Path) -> None:
    tasks = large(tmp_path)
    os.utime(tasks.file, ns=(0, 0))
    with pytest.raises(ConfigError, match=r"tasks\.jsonl: was changed after the run had started"):
        tasks[3]
    tasks.file.unlink()
    with pytest.raises(ConfigError, match=r"tasks\.jsonl: no such file"):
        tasks[3]


def test_screening_reads_the_first_rows_unless_tasks_are_to_be_left_out(tmp_path: Path) -> None:
    tasks = large(tmp_path, line_9000=row(0))
    held_out = [Task(id="v", domain="v", messages=(Message("user", f"{number}+1="),)) for number in (5, 5000)]

    def screened(**kwargs: Any) -> tuple[Sequence[Task], ScreeningCounts]:
        return screen("d", tasks, held_out=held_out, length_of=lambda task: len(task.messages[0].content), **kwargs)

    remaining, counts = screened()
    assert remaining is tasks
    assert counts == ScreeningCounts(
        source="d", total=LARGE + 2, kept=LARGE + 2, overlaps=1, unread=LARGE + 2 - NUM_CHECKED
    )
    assert "1 held out for validation, and kept: set dedup, 9002 read when drawn" in str(counts)
    remaining, counts = screened(dedup="exact", max_prompt_tokens=7)
    assert isinstance(remaining, TaskFile) and counts == ScreeningCounts(
        source="d", total=LARGE + 2, kept=LARGE - 3, duplicates=1, overlaps=2, too_long=2
    )
    assert [task.id for task in remaining[4:6]] == ["5", "7"]
