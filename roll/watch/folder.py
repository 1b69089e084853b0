"""The runs of a folder: which there are, their states in brief, and the views of those that were looked at."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from roll.errors import ConfigError, RollError, RunStopped, one_line
from roll.journal.database import check_format, connect
from roll.tracking.directory import JOURNAL, METRICS
from roll.watch.view import NotFound, RunView, Signature, file_signature, last_change, state_name

_TAIL = 64 * 1024
"""Bytes at the end of a metrics file that are read for the list."""
_HELD_OUT = ("validation/accuracy", "validation/reward", "sft/accuracy")
_MAX_RUNS = 1000
_LAST_LIFE = "SELECT kind FROM events WHERE kind IN ('RunStarted', 'RunEnded') ORDER BY id DESC LIMIT 1"


class RunFolder:
    """One run directory, or a folder of many; the views of runs are opened when they are first needed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.single = _is_run(path)
        if self.single:
            check_format(path / JOURNAL)
        elif not path.is_dir():
            raise ConfigError(f"{path}: no such directory; give the directory of a run, such as runs/demo, or of runs")
        elif not self._directories():
            raise ConfigError(f"{path}: no run here (no config.yaml or {JOURNAL}); give a run, or a folder of runs")
        self._views: dict[str, RunView] = {}
        self._summaries: dict[str, tuple[Signature, dict[str, Any]]] = {}
        self._lock = threading.Lock()

    def _directories(self) -> dict[str, Path]:
        """Run directories by name; nothing else can be opened by an address."""
        if self.single:
            return {self.path.resolve().name: self.path}
        try:
            runs = sorted(path for path in self.path.iterdir() if path.is_dir() and _is_run(path))
        except OSError as error:
            raise RunStopped(f"{self.path}: cannot be read ({error.strerror}); check its permissions") from None
        return {path.name: path for path in runs[:_MAX_RUNS]}

    def view(self, name: str) -> RunView:
        """The view of a run as of now; `NotFound` if there is no such run."""
        with self._lock:
            view = self._views.get(name)
            if view is None:
                directory = self._directories().get(name)
                if directory is None:
                    raise NotFound(f"run {name[:80]!a}: there is none; choose one of the list")
                view = self._views[name] = RunView(name, directory)
        view.refresh()
        return view

    def list_runs(self) -> dict[str, Any]:
        """The answer of `/runs`."""
        runs = [self._summary(name, directory) for name, directory in self._directories().items()]
        return {"folder": str(self.path), "single": self.single, "position": None, "runs": runs}

    def close(self) -> None:
        for view in self._views.values():
            view.close()

    def _summary(self, name: str, directory: Path) -> dict[str, Any]:
        signature = file_signature(directory)
        known = self._summaries.get(name)
        if known is None or known[0] != signature:
            self._summaries[name] = known = signature, _summarise(name, directory)
        summary = known[1]
        if summary["error"] is not None:
            return {**summary, "state": "unreadable"}
        changed = last_change(directory)
        empty = summary["step"] is None and not summary["started"]
        return {**summary, "changed": changed, "state": state_name(summary["state"] == "ended", changed, empty=empty)}


def _is_run(path: Path) -> bool:
    return (path / "config.yaml").is_file() or (path / JOURNAL).is_file()


def _summarise(name: str, directory: Path) -> dict[str, Any]:
    """One run in brief, from the end of its metrics and two events of its journal."""
    line = _last_line(directory / METRICS)
    held_out = next((line[each] for each in _HELD_OUT if each in line), None)
    summary: dict[str, Any] = {
        "run": name,
        "state": "running",
        "step": line.get("step"),
        "reward": line.get("reward/mean"),
        "held_out": held_out,
        "changed": 0.0,
        "started": None,
        "journal": (directory / JOURNAL).is_file(),
        "error": None,
        "steps": _steps(directory),
    }
    if not summary["journal"]:
        return summary
    try:
        with closing(connect(directory / JOURNAL, write=False)) as connection:
            first = connection.execute("SELECT time FROM events ORDER BY id LIMIT 1").fetchone()
            last = connection.execute(_LAST_LIFE).fetchone()
    except (RollError, sqlite3.Error) as error:
        return {**summary, "error": one_line(str(error))}
    return {**summary, "started": first and first[0], "state": "ended" if last == ("RunEnded",) else "running"}


def _last_line(path: Path) -> Mapping[str, Any]:
    """The last complete line of a metrics file, with older held-out results."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL))
            lines = file.read().split(b"\n")[:-1]
    except OSError:
        return {}
    merged: dict[str, Any] = {}
    for line in lines:
        try:
            merged |= {name: value for name, value in json.loads(line).items() if value is not None}
        except (ValueError, AttributeError):
            continue  # the first may be cut short by the limit
    return merged


def _steps(directory: Path) -> int | None:
    """`steps` at the top level of a resolved configuration, without parsing all of it."""
    try:
        with (directory / "config.yaml").open(encoding="utf-8", errors="replace") as file:
            for line in file:
                name, _, value = line.partition(":")
                if name == "steps" and value.strip().isdecimal():
                    return int(value)
    except OSError:
        return None
    return None
