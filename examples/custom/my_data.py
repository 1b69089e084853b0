"""A custom dataset: a function that returns tasks."""

from collections.abc import Sequence
from pathlib import Path

from roll.data.tasks import jsonl
from roll.types import Task


def words(file: str) -> Sequence[Task]:
    """The tasks of a file in this folder, independent of the current directory."""
    return jsonl(str(Path(__file__).with_name(file)))
