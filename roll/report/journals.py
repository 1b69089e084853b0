"""The journal of a run directory, for the readers of it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from roll.errors import ConfigError, JournalDamaged
from roll.journal.salvage import copy_readable
from roll.journal.store import Reader
from roll.tracking.directory import JOURNAL, check_run

T = TypeVar("T")


def open_journal(directory: Path) -> closing[Reader]:
    """The journal of the run in `directory`, closed at the end of the block; `ConfigError` if there is no run."""
    check_run(directory, JOURNAL)
    return closing(Reader(directory / JOURNAL))


def with_readable(directory: Path, read: Callable[[Path], T]) -> T:
    """The result of `read` for the run directory; if its journal is damaged, for a copy with the readable rows.

    A warning then says how much is missing.
    """
    try:
        return read(directory)
    except JournalDamaged as damage:
        with TemporaryDirectory(prefix="roll-") as folder:
            copy = Path(folder) / directory.name
            copy.mkdir()
            for path in directory.absolute().iterdir():
                if not path.name.startswith(JOURNAL):
                    (copy / path.name).symlink_to(path)
            counts = copy_readable(directory / JOURNAL, copy / JOURNAL)
            lost = ", ".join(counts.lost[:5]) + ("" if len(counts.lost) <= 5 else f" and {len(counts.lost) - 5} more")
            sys.stderr.write(
                f"{damage.path}: damaged ({damage.cause}); {counts.num_rows:,} rows can be read and are used, "
                f"these cannot: {lost or 'none, but an index is damaged'}; the file is unchanged\n"
            )
            try:
                return read(copy)
            except (LookupError, ValueError, AssertionError) as error:
                raise ConfigError(
                    f"{damage.path}: too little of it can be read for this ({type(error).__name__}: {error}); "
                    "copy it back from a backup"
                ) from error
