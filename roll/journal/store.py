"""The journal's file: SQLite in WAL mode, written by the controller's thread alone, read by anyone meanwhile.

call — waits for — woken by: `record`, `keep` — nothing, until a batch is full; `flush` — the commit, and with
`durable` the disk; readers — nothing, they see the last commit.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import msgspec

from roll.errors import ConfigError, RunStopped
from roll.journal.events import KINDS, Event, RolledBack, Taken
from roll.journal.packing import pack, unpack
from roll.types import Status, Trajectory

FORMAT = 2
_BATCH = 256
_TABLES = """
CREATE TABLE events (
    id INTEGER PRIMARY KEY, time REAL NOT NULL, kind TEXT NOT NULL, step INTEGER, version INTEGER, "group" INTEGER,
    body TEXT NOT NULL);
CREATE INDEX events_by_kind ON events (kind, id);
CREATE TABLE trajectories (
    id INTEGER PRIMARY KEY, "group" INTEGER NOT NULL, sibling INTEGER NOT NULL, task TEXT NOT NULL,
    domain TEXT NOT NULL, status TEXT NOT NULL, reward REAL, step INTEGER, undone INTEGER NOT NULL DEFAULT 0,
    body BLOB);
CREATE INDEX trajectories_by_group ON trajectories ("group");
CREATE INDEX trajectories_by_step ON trajectories (step);
CREATE TABLE durable (id INTEGER PRIMARY KEY, position INTEGER NOT NULL);
"""
_KEEP = """INSERT INTO trajectories ("group", sibling, task, domain, status, reward, body)
    VALUES (?, ?, ?, ?, ?, ?, ?)"""
_MARK_TAKEN = """UPDATE trajectories SET step = ?, undone = 0 WHERE id IN (
    SELECT MAX(id) FROM trajectories WHERE "group" = ? GROUP BY sibling)"""
_PRUNE = """UPDATE trajectories SET body = NULL WHERE body IS NOT NULL AND (step < :step OR (
    step IS NULL AND status NOT IN ('finished', 'truncated')
    AND "group" < (SELECT MIN("group") FROM trajectories WHERE step >= :step)))"""

E = TypeVar("E", bound=Event)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry(Generic[E]):
    """One line of the journal."""

    id: int
    time: float
    """Seconds since 1970."""
    event: E


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kept:
    """One trajectory of the journal, and what became of it."""

    id: int
    group: int
    sibling: int
    task: str
    domain: str
    status: Status
    reward: float | None
    """None for failures, which have none."""
    step: int | None
    """The step that trained on it; None if none did, or none that still counts."""
    undone: bool
    """It was trained on, and a rollback took that back."""
    trajectory: Trajectory | None
    """None once its tokens are pruned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which trajectories to read; None means any."""

    step: int | None = None
    group: int | None = None
    domain: str | None = None
    status: Status | None = None
    last: int | None = None
    """Only so many of the newest."""


class Reader:
    """A journal opened to be read, also while a run writes it."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise ConfigError(f"{path}: no journal here; give the directory of a run that has begun")
        self._path = path
        self._connection = _connect(path, "ro")

    def position(self) -> int:
        """Id of the last event."""
        return int(self._connection.execute("SELECT COALESCE(MAX(id), 0) FROM events").fetchone()[0])

    def last_group(self) -> int:
        """The highest ticket that was ever given out, also by an earlier process; -1 if none was."""
        return int(self._connection.execute('SELECT COALESCE(MAX("group"), -1) FROM events').fetchone()[0])

    def events(self, kind: type[E] = Event, *, after: int = 0) -> Iterator[Entry[E]]:
        """Events of one kind, or of all, later than the event `after`, in order."""
        chosen = "" if kind is Event else "AND kind = :kind"
        rows = self._connection.execute(
            f"SELECT id, time, kind, body FROM events WHERE id > :after {chosen} ORDER BY id",
            {"after": after, "kind": kind.__name__},
        )
        for id, when, name, body in rows:
            yield Entry(id=id, time=when, event=cast(E, msgspec.json.decode(body, type=KINDS[name])))

    def trajectories(self, wanted: Wanted | None = None) -> Iterator[Kept]:
        """The trajectories that were kept, in the order they ended."""
        wanted = wanted or Wanted()
        columns = {"step": wanted.step, '"group"': wanted.group, "domain": wanted.domain, "status": wanted.status}
        chosen = {name: value for name, value in columns.items() if value is not None}
        where = " AND ".join(f"{name} = ?" for name in chosen) or "1"
        newest = f"SELECT * FROM trajectories WHERE {where} ORDER BY id DESC LIMIT ?"
        limit = -1 if wanted.last is None else wanted.last
        rows = self._connection.execute(f"SELECT * FROM ({newest}) ORDER BY id", (*chosen.values(), limit))
        return (_kept(row) for row in rows)

    def close(self) -> None:
        self._connection.close()


class Journal(Reader):
    """The journal of the run that writes it. Made at its first use, continued afterwards."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._connection = _connect(path, "rwc")
        self._pending: list[tuple[str, tuple[Any, ...]]] = []
        self._position = super().position()

    def record(self, event: Event) -> int:
        """Note that something happened now; gives the event's id. On disk after the next `flush`."""
        self._position += 1
        columns = [getattr(event, name, None) for name in ("step", "version", "group")]
        body = msgspec.json.encode(event).decode()
        row = (self._position, time.time(), type(event).__name__, *columns, body)
        self._add("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        if isinstance(event, Taken):
            for group in event.groups:
                self._add(_MARK_TAKEN, (event.step, group))
        if isinstance(event, RolledBack):
            self._add("UPDATE trajectories SET step = NULL, undone = 1 WHERE step > ?", (event.to_step,))
        return self._position

    def keep(self, group: int, trajectory: Trajectory) -> None:
        """Store a trajectory; call this once for each attempt, before its group is taken."""
        about = (group, trajectory.sibling, trajectory.task.id, trajectory.task.domain, str(trajectory.status))
        reward = trajectory.reward if trajectory.status.valid else None
        self._add(_KEEP, (*about, reward, pack(trajectory)))

    def flush(self, durable: bool = False) -> None:
        """Commit what is pending; with `durable` it has survived a power cut when this returns."""
        if durable:
            # A commit in FULL mode carries the earlier ones of NORMAL mode to the disk, but only if it writes.
            self._pending.append(("INSERT OR REPLACE INTO durable VALUES (0, ?)", (self._position,)))
        if not self._pending:
            return
        try:
            self._connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            with self._connection:
                self._connection.execute("BEGIN")
                for statement, values in self._pending:
                    self._connection.execute(statement, values)
        except sqlite3.OperationalError as cause:
            raise RunStopped(
                f"{self._path}: the journal could not be written ({cause}); "
                "what was written before is intact, free some space and resume the run"
            ) from cause
        self._pending.clear()

    def prune(self, before_step: int) -> None:
        """Drop the tokens of trajectories trained before that step, and of failures older than it; events stay."""
        self._add(_PRUNE, {"step": before_step})
        self.flush()

    def position(self) -> int:
        """Id of the last event recorded, flushed or not."""
        return self._position

    def events(self, kind: type[E] = Event, *, after: int = 0) -> Iterator[Entry[E]]:
        """As a reader has it, with what is pending."""
        self.flush()
        return super().events(kind, after=after)

    def trajectories(self, wanted: Wanted | None = None) -> Iterator[Kept]:
        """As a reader has it, with what is pending."""
        self.flush()
        return super().trajectories(wanted)

    def close(self) -> None:
        self.flush(durable=True)
        super().close()

    def _add(self, statement: str, values: Any) -> None:
        self._pending.append((statement, values))
        if len(self._pending) >= _BATCH:
            self.flush()


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    """An open journal of this format; with mode `rwc` an empty file becomes one."""
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True, isolation_level=None)
        found = connection.execute("PRAGMA user_version").fetchone()[0]
        if mode == "rwc":
            connection.execute("PRAGMA journal_mode = WAL")
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


def _kept(row: tuple[Any, ...]) -> Kept:
    id, group, sibling, task, domain, status, reward, step, undone, body = row
    return Kept(
        id=id,
        group=group,
        sibling=sibling,
        task=task,
        domain=domain,
        status=Status(status),
        reward=reward,
        step=step,
        undone=bool(undone),
        trajectory=None if body is None else unpack(body),
    )
