"""The directory of one run: complete in itself, and written by one process at a time."""

from __future__ import annotations

import fcntl
import shutil
from pathlib import Path
from typing import IO

from roll.errors import ConfigError


class RunDirectory:
    """Where everything about a run lies. Holding one of these holds the run's lock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = _locked(path / ".lock")

    @classmethod
    def create(cls, path: Path, *, overwrite: bool) -> RunDirectory:
        """A fresh one. What an earlier run left is deleted only if asked for, and only if it is a run."""
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            if not overwrite:
                raise ConfigError(
                    f"{path}: exists already; go on with `roll resume {path}`, or add --overwrite, or change name="
                )
            if not (path / "config.yaml").is_file():
                raise ConfigError(f"{path}: is not the directory of a run, so it is not overwritten; change name=")
            _locked(path / ".lock").close()
            shutil.rmtree(path)
        path.mkdir(parents=True, exist_ok=True)
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """That of a run which has begun."""
        if not (path / "config.yaml").is_file():
            raise ConfigError(f"{path}: not the directory of a run (no config.yaml); give one such as runs/demo")
        return cls(path)

    @property
    def config(self) -> Path:
        """The run as it was resolved."""
        return self.path / "config.yaml"

    @property
    def origin(self) -> Path:
        """Names the folder of the file the run came from; modules beside it stay importable."""
        return self.path / "origin"

    @property
    def journal(self) -> Path:
        return self.path / "journal.db"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def curve(self) -> Path:
        return self.path / "curve.svg"

    def close(self) -> None:
        self._lock.close()


def _locked(path: Path) -> IO[str]:
    """An open file that no other process can lock meanwhile; the lock goes with the process, however it ends."""
    file = path.open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise ConfigError(
            f"{path.parent}: another process is at work on this run; wait for it, or change name="
        ) from None
    return file
