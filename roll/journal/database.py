"""The journal's SQLite file: its tables, its format number, and how to open it."""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec

from roll.errors import ConfigError, JournalDamaged, RunStopped, one_line

FORMAT = 10
"""Raised whenever a table, a stored record, or the name of an event or of one of its fields, changes."""
_PAGE = 16 * 1024
"""Bytes. Several trajectories fit on a page: one system call per trajectory costs more than copying it."""
_CACHE = 16 * 2**20
"""Bytes of the file that a writer caches, because it changes rows soon after writing them."""
_TABLES = """
CREATE TABLE events (
    id INTEGER PRIMARY KEY, time REAL NOT NULL, kind TEXT NOT NULL, step INTEGER, version INTEGER, "group" INTEGER,
    body TEXT NOT NULL);
CREATE INDEX events_by_kind ON events (kind, id);
CREATE TABLE trajectories (
    id INTEGER PRIMARY KEY, "group" INTEGER NOT NULL, sibling INTEGER NOT NULL, task TEXT NOT NULL,
    domain TEXT NOT NULL, ended REAL NOT NULL, status TEXT NOT NULL, reward REAL, reason TEXT NOT NULL,
    tokens INTEGER NOT NULL, progress_tokens INTEGER NOT NULL, versions TEXT NOT NULL,
    surplus INTEGER NOT NULL DEFAULT 0, stored INTEGER NOT NULL DEFAULT 1);
CREATE TABLE bodies (id INTEGER PRIMARY KEY, body BLOB NOT NULL);
CREATE INDEX trajectories_by_group ON trajectories ("group");
CREATE INDEX failed_with_body ON trajectories ("group") WHERE stored AND status NOT IN ('finished', 'truncated');
CREATE TABLE step_groups (
    id INTEGER PRIMARY KEY, step INTEGER NOT NULL, "group" INTEGER NOT NULL, attempts TEXT NOT NULL,
    rolled_back INTEGER NOT NULL DEFAULT 0, stored INTEGER NOT NULL DEFAULT 1);
CREATE INDEX step_groups_by_group ON step_groups ("group");
CREATE INDEX step_groups_by_step ON step_groups (step);
CREATE INDEX step_groups_with_bodies ON step_groups (step) WHERE stored AND NOT rolled_back;
CREATE TABLE progress (
    id INTEGER PRIMARY KEY, "group" INTEGER NOT NULL, sibling INTEGER NOT NULL, attempt INTEGER NOT NULL,
    turn INTEGER NOT NULL, context INTEGER NOT NULL, ids BLOB NOT NULL, logprobs BLOB NOT NULL,
    version INTEGER NOT NULL);
CREATE INDEX progress_by_group ON progress ("group", sibling);
CREATE TABLE deleted_progress (id INTEGER PRIMARY KEY, tokens INTEGER NOT NULL);
CREATE TABLE token_values (
    id INTEGER PRIMARY KEY, step INTEGER NOT NULL, "group" INTEGER NOT NULL, sibling INTEGER NOT NULL,
    advantages BLOB NOT NULL, logprobs BLOB);
CREATE INDEX token_values_by_step ON token_values (step, "group", sibling);
CREATE TABLE spans (
    id INTEGER PRIMARY KEY, worker TEXT NOT NULL, activity TEXT NOT NULL, start REAL NOT NULL, "end" REAL NOT NULL);
CREATE TABLE durable (id INTEGER PRIMARY KEY, position INTEGER NOT NULL);
"""


def connect(path: Path, *, write: bool) -> sqlite3.Connection:
    """An open journal of this format. With `write` an empty file becomes one, and any single thread may use it.

    A journal of another format is refused before anything is written to it.
    """
    try:
        mode = "rwc" if write else "ro"
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={mode}", uri=True, isolation_level=None, check_same_thread=not write
        )
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version != FORMAT and not (write and version == 0):
            connection.close()
            if version == 0:
                raise ConfigError(f"{path}: empty; if its {path.name}-wal is missing, put that file back")
            raise ConfigError(
                f"{path}: written in journal format {version} (this release reads format {FORMAT}); "
                "use the release that wrote it, or start a new run"
            )
        if write:
            connection.execute(f"PRAGMA page_size = {_PAGE}")  # takes effect in a file that is still empty
            connection.execute(f"PRAGMA cache_size = -{_CACHE // 1024}")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA secure_delete = OFF")  # some builds overwrite pruned data with zeros
            if version == 0:
                connection.executescript(f"BEGIN; {_TABLES} PRAGMA user_version = {FORMAT}; COMMIT;")
    except sqlite3.OperationalError as error:
        raise RunStopped(
            f"{path}: the journal could not be opened ({error}); free some space, or check the permissions"
        ) from error
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_CORRUPT:
            raise JournalDamaged(str(path), str(error)) from None
        raise ConfigError(f"{path}: not a journal ({error}); give another run, or move the file away") from None
    return connection


def check_format(path: Path) -> None:
    """Refuse the journal of another release before any other file of its run is read; a missing file is fine."""
    if path.is_file():
        connect(path, write=False).close()


def check_intact(path: Path) -> None:
    """Raise `JournalDamaged` if a page of the journal cannot be read; reads the whole file."""
    with closing(connect(path, write=False)) as connection, report_damage(path):
        (finding,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if finding != "ok":
            raise JournalDamaged(str(path), one_line(finding))


@contextmanager
def report_damage(path: Path) -> Generator[None]:
    """Raise errors about unreadable pages and rows in this block as `JournalDamaged`."""
    try:
        yield
    except ConfigError:  # which is a ValueError
        raise
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError) and "I/O" not in str(error):
            raise
        raise JournalDamaged(str(path), str(error)) from error
    except (msgspec.MsgspecError, ValueError, KeyError, IndexError, TypeError, zlib.error) as error:
        raise JournalDamaged(str(path), f"a row cannot be decoded: {one_line(str(error))}") from error
