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
    def create(cls, path: Path, *, overwrite: bool, resumable: bool = True) -> RunDirectory:
        """One for a fresh run, which `begin` begins. Refuses what is no run, and a run unless `overwrite` is given.

        One that is not `resumable` can only be made again from its beginning.
        """
        if path.exists() and (not path.is_dir() or _contents(path)):
            if not (path / "config.yaml").is_file():
                raise ConfigError(f"{path}: exists already and is not the directory of a run; change name=")
            if not overwrite:
                resume = f"go on with `roll resume {path}`, or " if resumable else ""
                raise ConfigError(f"{path}: exists already; {resume}add --overwrite, or change name=")
        path.mkdir(parents=True, exist_ok=True)
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """That of a run which has begun."""
        if not (path / "config.yaml").is_file():
            raise ConfigError(f"{path}: not the directory of a run (no config.yaml); give one such as runs/demo")
        return cls(path)

    def begin(self, config: str, origin: Path) -> None:
        """Delete what an earlier run left and write down what this one is: call it once nothing can be found wrong."""
        last = [self.config] if self.config.exists() else []  # as long as it is there, this is a run to overwrite
        for path in [*(path for path in _contents(self.path) if path != self.config), *last]:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        self.config.write_text(config, encoding="utf-8")
        self.origin.write_text(str(origin), encoding="utf-8")

    @property
    def config(self) -> Path:
        """The run as it was resolved."""
        return self.path / "config.yaml"

    @property
    def origin(self) -> Path:
        """Names the file the run came from; modules beside it stay importable."""
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


def _contents(path: Path) -> list[Path]:
    """What lies in the directory, aside from its lock and from logs: workers write them before a run begins."""
    return [entry for entry in path.iterdir() if entry.name not in (".lock", "logs")]


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
