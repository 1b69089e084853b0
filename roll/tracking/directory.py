"""The directory of one run: self-contained, and written by one process at a time."""

from __future__ import annotations

import fcntl
import re
import shutil
from pathlib import Path
from typing import IO

from roll.errors import ConfigError

_BEFORE_BEGIN = re.compile(r"\.lock|\.supervisor|\.ray|logs|controller\.log|weights-\w+-[0-9a-f]{8}")

METRICS = "metrics.jsonl"
"""File of a run directory with one line per step."""
JOURNAL = "journal.db"
"""Journal of a run directory."""


def check_run(path: Path, file: str = "config.yaml") -> None:
    """Raise `ConfigError` unless the path is the directory of a run, which has this file."""
    if not path.is_dir():
        raise ConfigError(f"{path}: no such directory; give the directory of a run, such as runs/demo")
    if not (path / file).is_file():
        raise ConfigError(f"{path}: not the directory of a run (no {file}); give one such as runs/demo")


def check_free(path: Path, *, overwrite: bool, resumable: bool = True) -> None:
    """Raise `ConfigError` unless a run may start in this directory; the arguments are those of `create`."""
    if path.exists() and (not path.is_dir() or _contents(path)):
        if not (path / "config.yaml").is_file():
            raise ConfigError(f"{path}: exists already and is not the directory of a run; change name=")
        if not overwrite:
            resume = f"continue with `roll resume {path}`, or " if resumable else ""
            raise ConfigError(f"{path}: exists already; {resume}add --overwrite, or change name=")


class RunDirectory:
    """All files of a run. An open instance holds the run's lock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        """The resolved configuration."""
        self.origin = path / "origin"
        """Holds the path of the run's original file; modules next to that file stay importable."""
        self.journal, self.metrics, self.curve = path / JOURNAL, path / METRICS, path / "curve.svg"
        self.log = path / "controller.log"
        self._lock = lock_file(path / ".lock", "another process is using this run; wait for it, or change name=")

    @classmethod
    def create(cls, path: Path, *, overwrite: bool, resumable: bool = True) -> RunDirectory:
        """The directory of a fresh run, which `begin` clears. Refuses other directories, and runs without `overwrite`.

        `resumable` says whether the error may suggest `roll resume`.
        """
        check_free(path, overwrite=overwrite, resumable=resumable)
        path.mkdir(parents=True, exist_ok=True)
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """The directory of an existing run."""
        check_run(path)
        return cls(path)

    def begin(self, config: str, origin: Path) -> None:
        """Delete the files of an earlier run and write the configuration; call it after all checks have passed."""
        last = [self.config] if self.config.exists() else []  # deleted last: it marks the directory as a run
        for path in [*(path for path in _contents(self.path) if path != self.config), *last]:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        self.config.write_text(config, encoding="utf-8")
        self.origin.write_text(str(origin), encoding="utf-8")

    def close(self) -> None:
        self._lock.close()


def _contents(path: Path) -> list[Path]:
    """Files in the directory except the lock, and the logs and rendezvous files that are written before `begin`."""
    return [entry for entry in path.iterdir() if not _BEFORE_BEGIN.fullmatch(entry.name)]


def lock_file(path: Path, refusal: str) -> IO[str]:
    """An open, exclusively locked file; the lock ends with the process, also when it is killed.

    `refusal` is the error, after the name of the directory, if another process holds the lock.
    """
    file = path.open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise ConfigError(f"{path.parent}: {refusal}") from None
    return file
