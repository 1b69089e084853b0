"""The journal's file: its tables, and how it is opened."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from roll.errors import ConfigError, RunStopped

FORMAT = 5
_PAGE = 16 * 1024
"""Bytes. Several trajectories to a page: a system call for each of them costs more than copying it."""
_CACHE = 16 * 2**20
"""Bytes that a writer keeps of the file, to have what it changes soon after writing it."""
_TABLES = """
CREATE TABLE events (
    id INTEGER PRIMARY KEY, time REAL NOT NULL, kind TEXT NOT NULL, step INTEGER, version INTEGER, "group" INTEGER,
    body TEXT NOT NULL);
CREATE INDEX events_by_kind ON events (kind, id);
CREATE TABLE trajectories (
    id INTEGER PRIMARY KEY, "group" INTEGER NOT NULL, sibling INTEGER NOT NULL, task TEXT NOT NULL,
    domain TEXT NOT NULL, ended REAL NOT NULL, status TEXT NOT NULL, reward REAL, reason TEXT NOT NULL,
    tokens INTEGER NOT NULL, noted INTEGER NOT NULL, versions TEXT NOT NULL, spare INTEGER NOT NULL DEFAULT 0,
    stored INTEGER NOT NULL DEFAULT 1);
CREATE TABLE bodies (id INTEGER PRIMARY KEY, body BLOB NOT NULL);
CREATE INDEX trajectories_by_group ON trajectories ("group");
CREATE INDEX failed_with_body ON trajectories ("group") WHERE stored AND status NOT IN ('finished', 'truncated');
CREATE TABLE taken (
    id INTEGER PRIMARY KEY, step INTEGER NOT NULL, "group" INTEGER NOT NULL, attempts TEXT NOT NULL,
    undone INTEGER NOT NULL DEFAULT 0, stored INTEGER NOT NULL DEFAULT 1);
CREATE INDEX taken_by_group ON taken ("group");
CREATE INDEX taken_by_step ON taken (step);
CREATE INDEX taken_with_bodies ON taken (step) WHERE stored AND NOT undone;
CREATE TABLE progress (
    id INTEGER PRIMARY KEY, "group" INTEGER NOT NULL, sibling INTEGER NOT NULL, attempt INTEGER NOT NULL,
    turn INTEGER NOT NULL, context INTEGER NOT NULL, ids BLOB NOT NULL, logprobs BLOB NOT NULL,
    version INTEGER NOT NULL);
CREATE INDEX progress_by_group ON progress ("group", sibling);
CREATE TABLE spans (
    id INTEGER PRIMARY KEY, worker TEXT NOT NULL, doing TEXT NOT NULL, began REAL NOT NULL, ended REAL NOT NULL);
CREATE TABLE durable (id INTEGER PRIMARY KEY, position INTEGER NOT NULL);
"""


def connect(path: Path, *, write: bool) -> sqlite3.Connection:
    """An open journal of this format; written, an empty file becomes one, and any one thread may use it."""
    try:
        mode = "rwc" if write else "ro"
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={mode}", uri=True, isolation_level=None, check_same_thread=not write
        )
        found = connection.execute("PRAGMA user_version").fetchone()[0]
        if write:
            connection.execute(f"PRAGMA page_size = {_PAGE}")  # of a file that is still empty
            connection.execute(f"PRAGMA cache_size = -{_CACHE // 1024}")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA secure_delete = OFF")  # some builds write zeros over all that is pruned
            if found == 0:
                connection.executescript(f"BEGIN; {_TABLES} PRAGMA user_version = {FORMAT}; COMMIT;")
                found = FORMAT
    except sqlite3.OperationalError as error:
        raise RunStopped(
            f"{path}: the journal could not be opened ({error}); free some space, or see who may write there"
        ) from error
    except sqlite3.DatabaseError as error:
        raise ConfigError(f"{path}: not a journal ({error}); give another run, or move the file away") from None
    if found != FORMAT:
        raise ConfigError(f"{path}: a journal of format {FORMAT} expected (got {found}); use the version that wrote it")
    return connection
