"""Copies each complete checkpoint of a run to a store, in a thread; errors of the store never stop the run.

| call | waits for | woken by |
|---|---|---|
| `add` | hard links to the files of the checkpoint | |
| `close` | the last copy, or three failed tries of it | the thread |

If checkpoints appear faster than they are copied, only the newest of those that wait is copied.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path

from roll.checkpoint import Checkpoints
from roll.checksums import write_checksums
from roll.errors import one_line
from roll.pipelines.store import CHECKPOINT, RUN, CheckpointStore
from roll.tracking.directory import JOURNAL
from roll.tracking.log import announce

_LOG = logging.getLogger(__name__)
_FILES = ("config.yaml", "origin", "metrics.jsonl", "screening.jsonl")
_FOLDERS = ("tokenizer", "reference")
_RETRY_S, _LONGEST_RETRY_S = 1.0, 60.0
"""Seconds before the first retry, which double up to the longest."""
_LAST_TRIES = 3
"""Failed tries after the end of training at which the copy is given up."""
_PROGRESS_S = 10.0
_POLL_S = 0.1


class Mirror:
    """The copies of one run's checkpoints in a store."""

    def __init__(self, directory: Path, store: CheckpointStore) -> None:
        """`directory` is that of the run."""
        self._directory, self._store = directory, store
        self._checkpoints = Checkpoints(directory / "checkpoints", keep=1)
        self._staging = directory / ".mirror"
        shutil.rmtree(self._staging, ignore_errors=True)  # of a process that was killed
        self._waiting: tuple[int, Path] | None = None
        self._changed = threading.Condition()
        self._closing = False
        self._num_bytes = self._total_bytes = 0
        self._thread = threading.Thread(target=self._run, name="checkpoint mirror", daemon=True)
        self._thread.start()

    def add(self, step: int, checkpoint: Path) -> None:
        """Copy this checkpoint in the background, in place of one that still waits."""
        folder = self._staging / f"step-{step}"
        try:
            shutil.rmtree(folder, ignore_errors=True)
            _link(checkpoint, folder / CHECKPOINT)  # retention may remove the original before it is copied
        except OSError as error:
            announce(f"{checkpoint}: not copied to {self._store.url} ({error})", logging.WARNING)
            return
        with self._changed:
            if self._waiting is not None:
                shutil.rmtree(self._waiting[1], ignore_errors=True)
            self._waiting = step, folder
            self._changed.notify()

    async def close(self) -> None:
        """Wait for the last copy, and report its progress."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        reported = time.monotonic()
        while self._thread.is_alive():
            await asyncio.sleep(_POLL_S)
            if time.monotonic() - reported >= _PROGRESS_S:
                reported = time.monotonic()
                done, total = self._num_bytes / 2**20, self._total_bytes / 2**20
                announce(f"copying the last checkpoint to {self._store.url}: {done:,.0f} of {total:,.0f} MiB")
        shutil.rmtree(self._staging, ignore_errors=True)

    def _run(self) -> None:
        while (item := self._next()) is not None:
            self._copy(*item)
            shutil.rmtree(item[1], ignore_errors=True)

    def _next(self) -> tuple[int, Path] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting is not None or self._closing)
            item, self._waiting = self._waiting, None
            return item

    def _copy(self, step: int, folder: Path) -> None:
        """Store one checkpoint; tries again until it works, a newer one waits, or the run has ended."""
        delay_s, num_failed, num_last = _RETRY_S, 0, 0
        while True:
            try:
                self._store_step(step, folder)
            except Exception as error:  # noqa: BLE001 - packages for stores have their own types of errors
                self._store.disconnect()
                num_failed += 1
                num_last += self._closing
                line = f"step-{step}: not copied to {self._store.url} ({type(error).__name__}: {one_line(str(error))})"
                if num_failed == 1:
                    announce(f"{line}; the run continues, and the copy is tried again", logging.WARNING)
                _LOG.info("%s, try %d", line, num_failed)
            else:
                _LOG.info("checkpoint of step %d: copied to %s", step, self._store.url)
                if num_failed:
                    announce(f"step-{step}: copied to {self._store.url} after {num_failed} failed tries")
                return
            if num_last >= _LAST_TRIES:
                announce(f"step-{step}: given up copying it to {self._store.url}; it is only here", logging.WARNING)
                return
            with self._changed:
                if self._changed.wait_for(lambda: self._waiting is not None, _RETRY_S if self._closing else delay_s):
                    return
            delay_s = min(2 * delay_s, _LONGEST_RETRY_S)

    def _store_step(self, step: int, folder: Path) -> None:
        if not (folder / RUN).is_dir():
            self._add_run_files(folder / RUN)
            write_checksums(folder)
        files = [path for path in folder.rglob("*") if path.is_file()]
        self._num_bytes, self._total_bytes = 0, sum(path.stat().st_size for path in files)
        self._store.upload(step, folder, self._count)
        self._store.remove_except({*self._checkpoints.steps(), step})

    def _count(self, num_bytes: int) -> None:
        self._num_bytes += num_bytes

    def _add_run_files(self, folder: Path) -> None:
        """Copy what a resume needs besides the checkpoint, with a consistent state of the journal."""
        temporary = folder.with_name(f".{RUN}")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        for name in _FILES:
            with suppress(FileNotFoundError):
                shutil.copyfile(self._directory / name, temporary / name)
        for name in _FOLDERS:
            if (self._directory / name).is_dir():
                _link(self._directory / name, temporary / name)
        journal = sqlite3.connect(f"{(self._directory / JOURNAL).absolute().as_uri()}?mode=ro", uri=True)
        with closing(journal), closing(sqlite3.connect(temporary / JOURNAL)) as copy:
            journal.backup(copy)
        temporary.rename(folder)


@asynccontextmanager
async def mirroring(directory: Path, url: str | None) -> AsyncGenerator[Sequence[Callable[[int, Path], None]]]:
    """Yields callbacks for complete checkpoints, one that copies them if there is a URL; waits for the last copy."""
    if url is None:
        yield ()
        return
    mirror = Mirror(directory, CheckpointStore(url))
    try:
        yield (mirror.add,)
    finally:
        await mirror.close()


def _link(source: Path, target: Path) -> None:
    """Copy a tree by hard links where the file system has them."""

    def copy(file: str, link: str) -> None:
        try:
            os.link(file, link)
        except OSError:
            shutil.copyfile(file, link)

    shutil.copytree(source, target, copy_function=copy)
