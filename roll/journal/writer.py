"""The thread that writes the journal, so that nobody else waits for a disk.

call — waits for — woken by: `put` — nothing, unless so much is pending that the disk cannot keep up; then until half
of it is written; `settle` — the commit of everything put before it; `close` — the same, and the thread's end.
Whoever waits is woken by the commit of a batch, or by the failure of one.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import deque
from pathlib import Path

from roll.errors import ConfigError, RunStopped
from roll.journal.batch import Batch, Item, Stock, Whole

_BATCH = 2048
"""Pending items that are worth a transaction at once: each writes the last page of every table anew."""
_PERIOD_S = 0.1
"""The longest that something waits for company in its transaction, and progress for the end of what it belongs to."""
_FULL = 8192
"""Pending items at which `put` waits: memory is bounded, and a thread that never rests lets this one work."""


class Writer:
    """Writes what it is given in order, in batches. Used by one thread; after a failure it writes nothing more."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self._path, self._connection = path, connection
        self._stock = Stock(connection)
        self._queue: deque[Item] = deque()
        self._num_put = self._num_written = 0
        self._some, self._urgent = threading.Event(), threading.Event()
        self._changed = threading.Condition()
        self._failure: Exception | None = None
        self._closing = False
        self._told = False
        """Whether the thread knows of all that is pending, or will before it looks at it."""
        # A daemon: an error that skips `close` must not keep the process alive.
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def put(self, item: Item) -> None:
        """Have it written, soon."""
        if self._failure is not None:
            raise self._failure
        assert not self._closing, "the journal is closed"
        self._queue.append(item)
        self._num_put += 1
        if not self._told:
            self._told = True
            self._some.set()
        if len(self._queue) >= _BATCH and not self._urgent.is_set():
            self._urgent.set()
        if self._num_put - self._num_written >= _FULL:
            self._wait(self._num_put - _FULL // 2)

    def settle(self) -> None:
        """Come back once all that was put is committed."""
        if self._num_put > self._num_written or self._stock.held:
            self.put(Whole())
            self._wait(self._num_put)
        self._complain()

    def close(self) -> None:
        """Write what is pending, end the thread, and say if something could not be written."""
        self._closing = True
        self._wake()
        self._thread.join()
        self._connection.close()
        self._complain()

    def _complain(self) -> None:
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
        while self._failure is None and (self._queue or self._stock.held or not self._closing):
            self._some.wait(_PERIOD_S if self._stock.held else None)
            self._urgent.wait(_PERIOD_S)
            self._some.clear()
            self._urgent.clear()
            self._told = False  # last: what is put before this is seen below, what is put after it is told again
            if not self._queue:
                self._write(0)  # what was held back
            while self._queue and self._failure is None:
                self._write(min(len(self._queue), _FULL // 2))

    def _write(self, num_items: int) -> None:
        """One transaction; a failure is for the thread that puts."""
        failure = None
        try:
            self._commit(num_items)
        except sqlite3.OperationalError as cause:
            failure = RunStopped(
                f"{self._path}: the journal could not be written ({cause}); "
                "what was written before is intact, free some space and resume the run"
            )
            failure.__cause__ = cause
        except Exception as error:  # noqa: BLE001 - whatever it is, the thread that puts has to hear of it
            failure = error
        with self._changed:
            self._num_written += num_items
            self._failure = failure
            self._changed.notify_all()

    def _commit(self, num_items: int) -> None:
        batch = Batch(self._stock)
        try:
            for _ in range(num_items):
                batch.add(self._queue.popleft())
        except ConfigError:
            batch.write(self._connection)  # what came before the thing that cannot be recorded
            raise
        batch.write(self._connection)
