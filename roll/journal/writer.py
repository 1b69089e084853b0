"""The thread that writes the journal, so that no other thread waits for the disk.

| call | waits for | woken by |
|---|---|---|
| `put` | nothing; with `_FULL` items pending, until half of them are written | the commit or failure of a batch |
| `commit` | the commit of every item put before it | the commit or failure of a batch |
| `close` | the same, and the end of the thread | the thread |
"""

from __future__ import annotations

import sqlite3
import threading
from collections import deque
from pathlib import Path

from roll.errors import ConfigError, JournalDamaged, RunStopped
from roll.journal.batch import FlushProgress, WriteBatch, WriteItem, WriterState

_BATCH = 2048
"""Pending items that start a transaction at once: every transaction rewrites the last page of every table."""
_PERIOD_S = 0.1
"""Longest time that an item waits for others in its transaction, and progress for the end of its attempt."""
_FULL = 8192
"""Pending items at which `put` blocks, which bounds memory and gives the writer thread time to run."""


class Writer:
    """Writes items in order, in batches. Used by one thread; after a failure it writes nothing more."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self._path, self._connection = path, connection
        self._state = WriterState(connection)
        self._queue: deque[WriteItem] = deque()
        self._num_put = self._num_written = 0
        self._some, self._urgent = threading.Event(), threading.Event()
        self._changed = threading.Condition()
        self._failure: Exception | None = None
        self._closing = False
        self._notified = False
        """Whether the thread has been woken for the pending items, or will look at them anyway."""
        # A daemon: an error that skips `close` must not keep the process alive.
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def put(self, item: WriteItem) -> None:
        """Queue the item to be written soon."""
        if self._failure is not None:
            raise self._failure
        assert not self._closing, "the journal is closed"
        self._queue.append(item)
        self._num_put += 1
        if not self._notified:
            self._notified = True
            self._some.set()
        if len(self._queue) >= _BATCH and not self._urgent.is_set():
            self._urgent.set()
        if self._num_put - self._num_written >= _FULL:
            self._wait(self._num_put - _FULL // 2)

    def commit(self) -> None:
        """Return once every item put so far is committed."""
        if self._num_put > self._num_written or self._state.deferred:
            self.put(FlushProgress())
            self._wait(self._num_put)
        self._raise_failure()

    def close(self) -> None:
        """Write all pending items and end the thread; raises if something could not be written."""
        self._closing = True
        self._wake()
        self._thread.join()
        self._connection.close()
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _wait(self, num_written: int) -> None:
        self._wake()
        with self._changed:
            self._changed.wait_for(lambda: self._num_written >= num_written or self._failure is not None)

    def _wake(self) -> None:
        self._urgent.set()
        self._some.set()

    def _run(self) -> None:
        while self._failure is None and (self._queue or self._state.deferred or not self._closing):
            self._some.wait(_PERIOD_S if self._state.deferred else None)
            self._urgent.wait(_PERIOD_S)
            self._some.clear()
            self._urgent.clear()
            self._notified = False  # last: an earlier put is seen below, a later one wakes the thread again
            if not self._queue:
                self._write(0)  # deferred progress
            while self._queue and self._failure is None:
                self._write(min(len(self._queue), _FULL // 2))

    def _write(self, num_items: int) -> None:
        """One transaction; stores a failure for the thread that puts."""
        failure = None
        try:
            self._commit(num_items)
        except sqlite3.OperationalError as cause:
            failure = RunStopped(
                f"{self._path}: the journal could not be written ({cause}); "
                "earlier events are intact: free some space and resume the run"
            )
            failure.__cause__ = cause
        except sqlite3.DatabaseError as cause:
            damaged = cause.sqlite_errorcode in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
            failure = JournalDamaged(str(self._path), str(cause)) if damaged else cause
        except Exception as error:  # noqa: BLE001 - the thread that puts raises any error
            failure = error
        with self._changed:
            self._num_written += num_items
            self._failure = failure
            self._changed.notify_all()

    def _commit(self, num_items: int) -> None:
        batch = WriteBatch(self._state)
        try:
            for _ in range(num_items):
                batch.add(self._queue.popleft())
        except ConfigError:
            batch.write(self._connection)  # the items before the one that cannot be recorded
            raise
        batch.write(self._connection)
