"""One run as the server shows it: its metrics, its journal, and the index, kept up to date by a thread.

| call | waits for | woken by |
|---|---|---|
| `state`, `rows` | nothing: they show the last update | |
| the thread | a request in the last minute, then a change of a file, looked at every half second | `touch`, `close` |
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import msgspec

from roll.config.load import read
from roll.errors import ConfigError, JournalDamaged, RollError, RunStopped, one_line
from roll.journal.database import report_damage
from roll.journal.events import RunEnded
from roll.journal.salvage import copy_readable
from roll.tracking.directory import JOURNAL, METRICS
from roll.watch.index import SampleIndex
from roll.watch.metrics import MetricColumns
from roll.watch.texts import TextDecoder

POLL_S = 0.5
"""Seconds between two looks at the files of a run."""
SILENT_S = 60.0
"""Seconds without a record after which a run without an end is silent."""
_IDLE_S = 60.0
"""Seconds without a request after which the files are not looked at any more."""
_SLICE_S = 0.25
"""Longest time for texts before the thread looks for new rows again."""
_NICE = 10
Signature = tuple[tuple[int, int, int], ...]


class NotFound(ConfigError):
    """There is no such run, attempt or page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """The newest end of a run."""

    step: int
    reason: str
    time: float


class RunView:
    """What is known about one run directory; opening it costs nothing until `start`."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name, self.directory = name, directory
        self.metrics = MetricColumns(directory / METRICS)
        self.index: SampleIndex | None = None
        self.error: str | None = None
        """Why the journal cannot be read now, in one line."""
        self.salvaged: str | None = None
        """What is missing, if the journal is damaged and a copy of its readable rows is shown."""
        self.end: RunEnd | None = None
        self.num_notices = self.num_failures = 0
        self._journal = directory / JOURNAL
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._thread: threading.Thread | None = None
        self._closed, self._woken = threading.Event(), threading.Event()
        self._asked = 0.0
        self._signature: Signature = ()
        self._texts_done = False
        self._ready = threading.Event()
        self._config: tuple[tuple[int, int, int], Any] = ((0, 0, 0), None)
        self.changed = threading.Condition()
        """Notified after each update."""

    @property
    def has_journal(self) -> bool:
        return (self.directory / JOURNAL).is_file()

    @cached_property
    def decoder(self) -> TextDecoder:
        return TextDecoder(self.directory)

    def start(self) -> None:
        """Start the thread, once; the first update follows."""
        self._asked = time.monotonic()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"watch {self.name}", daemon=True)
            self._thread.start()

    def poll(self) -> None:
        """Look at the files now."""
        self._woken.set()

    def touch(self) -> None:
        """Keep the view up to date for another minute."""
        idle = time.monotonic() - self._asked > _IDLE_S
        self.start()
        if idle:
            self._woken.set()

    def wait_ready(self, timeout_s: float) -> None:
        """Return after the first update, or after this time."""
        self._ready.wait(timeout_s)

    def wait_complete(self, timeout_s: float) -> None:
        """Return once the index has all rows of the journal, or after this time."""

        def is_complete() -> bool:
            return self.error is not None or (self.index is not None and self.index.complete)

        with self.changed:
            self.changed.wait_for(is_complete, timeout_s)

    def close(self) -> None:
        """End the thread and delete the index."""
        self._closed.set()
        self._woken.set()
        if self._thread is not None:
            self._thread.join()

    @property
    def position(self) -> int | None:
        return None if self.index is None else self.index.position

    @contextmanager
    def rows(self) -> Generator[sqlite3.Connection]:
        """The index for one request, with the journal attached as `journal`."""
        index = self.index
        if index is None:
            raise RunStopped(self.error or f"{self.name}: no journal is read yet; ask again in a moment")
        with index.connect() as connection, report_damage(self._journal):
            yield connection

    def config(self, *keys: str) -> Any:
        """A value of `config.yaml` as written; None where it is missing."""
        path = self.directory / "config.yaml"
        stamp = _file_state(path)
        if stamp != self._config[0]:
            try:
                self._config = stamp, read(path).tree
            except (ConfigError, OSError):
                self._config = stamp, None
        value = self._config[1]
        for key in keys:
            value = cast(dict[str, Any], value).get(key) if isinstance(value, dict) else None
        return cast(Any, value)

    def state(self) -> dict[str, Any]:
        """The answer of `/state`."""
        changed = last_change(self.directory)
        index = self.index
        return {
            "run": self.name,
            "state": self._state_name(changed),
            "position": self.position,
            "lines": len(self.metrics),
            "step": self.metrics.last_step(),
            "steps": self.config("steps"),
            "changed": changed,
            "quiet_s": max(0.0, time.time() - changed),
            "end": None
            if self.end is None
            else {"step": self.end.step, "reason": self.end.reason, "time": self.end.time},
            "notices": self.num_notices,
            "failures": self.num_failures,
            "index": _index_state(index, self._texts_done, self.error),
            "salvaged": self.salvaged,
        }

    def _state_name(self, changed: float) -> str:
        if self.error is not None and self.index is None:
            return "unreadable"
        return state_name(self.end is not None, changed, empty=not self.position and not len(self.metrics))

    def _run(self) -> None:
        with suppress(OSError):  # a run on this machine comes first
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        try:
            while not self._closed.is_set():
                working = self._update()
                self._ready.set()
                if not working:
                    idle = time.monotonic() - self._asked > _IDLE_S
                    self._woken.wait(None if idle else POLL_S)
                    self._woken.clear()
        finally:
            self._drop_index()

    def _update(self) -> bool:
        """One pass over new metrics, rows and texts; whether there is more to do at once."""
        signature = file_signature(self.directory)
        new = signature != self._signature
        index = self.index
        if not new and self.error is None and (index is None or (index.complete and self._texts_done)):
            return False
        try:
            if new:
                self.metrics.update()
            more = self.has_journal and self._update_index(new)
            self.error = None
        except JournalDamaged as damage:
            more = self._salvage(damage)
        except (RollError, sqlite3.Error, OSError) as error:
            self.error, more = one_line(f"{self.name}: {error}"), False
            if self.index is not None and not self.index.consistent:
                self._drop_index()
                more = True
        except Exception as error:  # noqa: BLE001 - the thread continues with the next record, and the reason is shown
            self.error, more = one_line(f"a fault of roll watch: {type(error).__name__}: {error}"), False
            self._drop_index()
        self._signature = signature
        with self.changed:
            self.changed.notify_all()
        return more and not self._closed.is_set()

    def _update_index(self, new: bool) -> bool:
        if self.index is None:
            if self._folder is None:
                self._folder = tempfile.TemporaryDirectory(prefix="roll-watch-", ignore_cleanup_errors=True)
            (Path(self._folder.name) / "index.db").unlink(missing_ok=True)  # of an attempt that failed
            self.index = SampleIndex(self._journal, Path(self._folder.name), self.decoder)
        if new or not self.index.complete:
            self.index.update()
            self._texts_done = False
            self._count()
        until = time.monotonic() + _SLICE_S
        while self.index.complete and not self._texts_done and time.monotonic() < until:
            self._texts_done = not self.index.update_texts()
        return not (self.index.complete and self._texts_done)

    def _count(self) -> None:
        """Ends, notices and failures, from the index."""
        from roll.watch.notices import count_notices

        with self.rows() as rows:
            self.num_notices = count_notices(rows)
            failures = "SELECT COUNT(*) FROM samples WHERE status LIKE '%_failed'"
            self.num_failures = rows.execute(failures).fetchone()[0]
            self.end = read_end(rows)

    def _salvage(self, damage: JournalDamaged) -> bool:
        """Show a copy with the readable rows from now on; whether that is possible."""
        if self.salvaged is not None or self._folder is None:
            self.error = one_line(str(damage))
            return False
        folder = Path(self._folder.name)
        copy = folder / JOURNAL
        copy.unlink(missing_ok=True)
        try:
            counts = copy_readable(self.directory / JOURNAL, copy)
        except (RollError, sqlite3.Error) as error:
            self.error = one_line(str(error))
            return False
        if self.index is not None:
            self.index.close()
        (folder / "index.db").unlink(missing_ok=True)
        lost = ", ".join(counts.lost[:3]) or "none, but an index is damaged"
        self.salvaged = (
            f"the journal is damaged ({one_line(damage.cause)}): {counts.num_rows:,} rows can be read; not: {lost}"
        )
        self._journal, self.index = copy, SampleIndex(copy, folder, self.decoder)
        return True

    def _drop_index(self) -> None:
        if self.index is not None:
            self.index.close()
        if self._folder is not None:
            shutil.rmtree(self._folder.name, ignore_errors=True)
            self._folder.cleanup()
        self.index = self._folder = self.end = self.salvaged = None
        self._journal = self.directory / JOURNAL


def read_end(rows: sqlite3.Connection, events: str = "journal.events") -> RunEnd | None:
    """The end of the run in a table of events; None if it has started again since, or has not ended."""
    query = f"""SELECT id, time, kind, body FROM {events} WHERE kind IN ('RunStarted', 'RunEnded')
        ORDER BY id DESC LIMIT 1"""
    last = rows.execute(query).fetchone()
    if last is None or last[2] == "RunStarted":
        return None
    event = msgspec.json.decode(last[3], type=RunEnded)
    return RunEnd(step=event.step, reason=event.reason, time=last[1])


def state_name(ended: bool, changed: float, *, empty: bool) -> str:
    """The state of a run in one word."""
    if ended:
        return "ended"
    if empty:
        return "empty"
    return "silent" if time.time() - changed > SILENT_S else "running"


_FILES = (JOURNAL, f"{JOURNAL}-wal", METRICS)


def file_signature(directory: Path) -> Signature:
    """Changes whenever the run has written something."""
    return tuple(_file_state(directory / name) for name in _FILES)


def last_change(directory: Path) -> float:
    """Time of the newest record; 0 where there is none."""
    return max(state[2] for state in file_signature(directory)) / 1e9


def _file_state(path: Path) -> tuple[int, int, int]:
    try:
        stat = path.stat()
    except OSError:
        return 0, 0, 0
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def _index_state(index: SampleIndex | None, texts_done: bool, error: str | None) -> Mapping[str, Any]:
    if index is None:
        return {"phase": "records", "records": 0, "texts": 0, "total": 0, "error": error}
    phase = "records" if not index.complete else "texts" if not texts_done else "done"
    counts = {"records": index.num_samples, "texts": index.num_texts, "total": index.total}
    return {"phase": phase, **counts, "error": error}
