"""A dataset of one's own: a function that returns tasks."""

from pathlib import Path

from roll.data.tasks import jsonl
from roll.types import Task


def words(file: str) -> list[Task]:
    """The tasks of a file that lies beside this one, wherever the run is started from."""
    return jsonl(str(Path(__file__).with_name(file)))
