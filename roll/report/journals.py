"""The journal of a run directory, for the readers of it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from roll.journal.store import Reader
from roll.tracking.directory import JOURNAL, check_run


def open_journal(directory: Path) -> closing[Reader]:
    """The journal of the run in `directory`, closed at the end of the block; `ConfigError` if there is no run."""
    check_run(directory, JOURNAL)
    return closing(Reader(directory / JOURNAL))
