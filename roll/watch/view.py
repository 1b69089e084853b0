"""One run as the server shows it: its metrics and a summary of its journal, and the index for pages that need it.

| call | waits for | woken by |
|---|---|---|
| `refresh` | its own read of what was appended, if a file has changed | |
| `indexed_rows` | the rows of the journal in the index, for a limited time | the thread |
| the thread | a request that needs the index; then it works until the index has all rows and texts | `start`, `close` |
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import msgspec

from roll.config.load import read
from roll.errors import ConfigError, JournalDamaged, RollError, RunStopped, one_line
from roll.journal.database import report_damage
from roll.journal.salvage import copy_readable
from roll.tracking.directory import JOURNAL, METRICS
from roll.watch.encoding import encode
from roll.watch.index import SampleIndex
from roll.watch.metrics import MetricColumns
from roll.watch.summary import JournalSummary
from roll.watch.texts import TextDecoder

SILENT_S = 60.0
"""Seconds without a record after which a run without an end is silent."""
_QUIET_S = 10.0
"""The page of a silent run shows for how long, to this accuracy."""
_BEGIN_S = 10.0
"""Longest time that a request waits for the first rows in the index, on a machine that is busy."""
_SLICE_S = 0.25
"""Longest time for texts before the thread looks for new rows again."""
Signature = tuple[tuple[int, int, int], ...]


class NotFound(ConfigError):
    """There is no such run, attempt or page."""


class RunView:
    """What is known about one run directory; opening it costs nothing until `refresh` or `start`."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name, self.directory = name, directory
        self.metrics, self.summary = MetricColumns(directory / METRICS), JournalSummary()
        self.index: SampleIndex | None = None
        self.salvaged: str | None = None
        """What is missing, if the journal is damaged and a copy of its readable rows is shown."""
        self._summary_error: str | None = None
        self._index_error: str | None = None
        self._journal = directory / JOURNAL
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._thread: threading.Thread | None = None
        self._refreshing, self._starting = threading.Lock(), threading.Lock()
        self._closed, self._woken = threading.Event(), threading.Event()
        self._refreshed: Signature = ()
        self._signature: Signature = ()
        self._requested = self._answered = 0
        """Number of calls of `start`, and of those after which the thread has looked at the files."""
        self._texts_done = False
        self._config: tuple[tuple[int, int, int], Any] = ((0, 0, 0), None)
        self.changed = threading.Condition()
        """Notified after each update of the index."""

    @property
    def has_journal(self) -> bool:
        return (self.directory / JOURNAL).is_file()

    @property
    def error(self) -> str | None:
        """Why the journal cannot be read now, in one line."""
        return self._summary_error or self._index_error

    @cached_property
    def decoder(self) -> TextDecoder:
        return TextDecoder(self.directory)

    def refresh(self) -> None:
        """Read what the run has written to its metrics and its journal since the last call."""
        signature = file_signature(self.directory)
        with self._refreshing:
            if signature == self._refreshed and self._summary_error is None:
                return
            self.metrics.update()
            self._summary_error = self._update_summary() if self.has_journal else None
            self._refreshed = signature

    def _update_summary(self) -> str | None:
        """Returns why the journal cannot be read; one that is damaged is shown from a copy, which the thread makes."""
        try:
            self.summary.update(self._journal)
        except JournalDamaged as damage:
            self.start()
            return one_line(str(damage))
        except (RollError, sqlite3.Error, OSError) as error:
            return one_line(f"{self.name}: {error}")
        return None

    def start(self) -> int:
        """Let the thread bring the index up to date; returns the number of the request."""
        with self._starting:
            self._requested += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"watch {self.name}", daemon=True)
                self._thread.start()
            self._woken.set()
            return self._requested

    def wait_current(self, timeout_s: float) -> None:
        """Return once the index has what the journal has now, or some of it after this time."""
        number = self.start()

        def is_current() -> bool:
            return self._answered >= number and (self.index is None or self.index.complete)

        def has_begun() -> bool:
            return self.index is not None or self._answered >= number

        with self.changed:
            self.changed.wait_for(is_current, timeout_s)
            self.changed.wait_for(has_begun, max(0.0, _BEGIN_S - timeout_s))

    def close(self) -> None:
        """End the thread and delete the index."""
        self._closed.set()
        self._woken.set()
        if self._thread is not None:
            self._thread.join()

    @property
    def position(self) -> int:
        """Id of the last row of the journal that has been read."""
        return self.summary.position

    @contextmanager
    def indexed_rows(self, timeout_s: float) -> Generator[sqlite3.Connection]:
        """The index for one request, with the journal attached as `journal`, as far as it is ready by then."""
        self.wait_current(timeout_s)
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
        changed, summary = last_change(self.directory), self.summary
        return {
            "run": self.name,
            "state": self._state_name(changed),
            "position": self.position,
            "lines": len(self.metrics),
            "step": self.metrics.last_step(),
            "steps": self.config("steps"),
            "changed": changed,
            "quiet_s": max(0.0, time.time() - changed),
            "end": None if summary.end is None else msgspec.to_builtins(summary.end),
            "notices": summary.num_notices,
            "failures": summary.num_failures,
            "index": _index_state(self.index, self._texts_done, self.error),
            "salvaged": self.salvaged,
        }

    def stamp(self) -> str:
        """Changes whenever the run has written something, and when its state is another one."""
        state = self.state()
        quiet = state["quiet_s"] // _QUIET_S if state["state"] == "silent" else 0
        return f"{zlib.crc32(encode({**state, 'quiet_s': quiet})):08x}"

    def _state_name(self, changed: float) -> str:
        if self.error is not None and self.index is None and not self.position:
            return "unreadable"
        return state_name(self.summary.end is not None, changed, empty=not self.position and not len(self.metrics))

    def _run(self) -> None:
        try:
            while not self._closed.is_set():
                self._woken.clear()
                number = self._requested
                more = self._attempt(self._update_index)
                with self.changed:
                    self._answered = number
                    self.changed.notify_all()
                if more or self._attempt(self._add_texts):
                    self._woken.set()
                self._woken.wait()
        finally:
            self._drop_index()

    def _attempt(self, work: Callable[[], bool]) -> bool:
        """One pass over new rows or texts; whether there is more to do at once."""
        try:
            more, self._index_error = work(), None
        except JournalDamaged as damage:
            more = self._salvage(damage)
        except (RollError, sqlite3.Error, OSError) as error:
            self._index_error, more = one_line(f"{self.name}: {error}"), False
            if self.index is not None and not self.index.consistent:
                self._drop_index()
                more = True
        except Exception as error:  # noqa: BLE001 - the thread continues with the next record, and the reason is shown
            self._index_error, more = one_line(f"a fault of roll watch: {type(error).__name__}: {error}"), False
            self._drop_index()
        return more

    def _update_index(self) -> bool:
        """Add new rows to the index; whether there are more."""
        signature = file_signature(self.directory)
        if not self.has_journal:
            return False
        if self.index is None:
            if self._folder is None:
                self._folder = tempfile.TemporaryDirectory(prefix="roll-watch-", ignore_cleanup_errors=True)
            (Path(self._folder.name) / "index.db").unlink(missing_ok=True)  # of an attempt that failed
            self.index = SampleIndex(self._journal, Path(self._folder.name), self.decoder)
        elif signature == self._signature and self.index.complete:
            return False
        self.index.update()
        self._signature, self._texts_done = signature, False
        return not self.index.complete

    def _add_texts(self) -> bool:
        """Add texts to the index for a while; whether there may be more."""
        if self.index is None or self._texts_done:
            return False
        until = time.monotonic() + _SLICE_S
        while not self._texts_done and time.monotonic() < until:
            self._texts_done = not self.index.update_texts()
        with self.changed:
            self.changed.notify_all()
        return not self._texts_done

    def _salvage(self, damage: JournalDamaged) -> bool:
        """Show a copy with the readable rows from now on; whether that is possible."""
        if self.salvaged is not None or self._folder is None:
            self._index_error = one_line(str(damage))
            return False
        folder = Path(self._folder.name)
        copy = folder / JOURNAL
        copy.unlink(missing_ok=True)
        try:
            counts = copy_readable(self.directory / JOURNAL, copy)
        except (RollError, sqlite3.Error) as error:
            self._index_error = one_line(str(error))
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
        self.index = self._folder = self.salvaged = None
        self._journal = self.directory / JOURNAL


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
    return tuple(_file_state(f"{directory}/{name}") for name in _FILES)


def last_change(directory: Path) -> float:
    """Time of the newest record; 0 where there is none."""
    return max(state[2] for state in file_signature(directory)) / 1e9


def _file_state(path: Path | str) -> tuple[int, int, int]:
    """A file without content counts as missing: a reader of SQLite may leave an empty write-ahead log."""
    try:
        stat = os.stat(path)
    except OSError:
        return 0, 0, 0
    return (stat.st_ino, stat.st_size, stat.st_mtime_ns) if stat.st_size else (0, 0, 0)


def _index_state(index: SampleIndex | None, texts_done: bool, error: str | None) -> Mapping[str, Any]:
    """`phase` is none before the first request that needs the index."""
    if index is None:
        return {"phase": "none", "position": 0, "records": 0, "texts": 0, "total": 0, "error": error}
    phase = "records" if not index.complete else "texts" if not texts_done else "done"
    counts = {"records": index.num_samples, "texts": index.num_texts, "total": index.total}
    return {"phase": phase, "position": index.position, **counts, "error": error}
