"""An index of a journal's attempts for filters and search: an SQLite file in a private temporary directory.

One thread updates it; any thread may query it through `connect`. The journal is attached for reading only.

| table | content |
|---|---|
| `samples` | one row per attempt, without its tokens |
| `texts`, `words` | beginning of prompt, response and comment, the text that a search covers, and its trigrams |
| `events` | time, kind, step, version and group of each event; the body is in the journal |
| `groups`, `versions` | outcome of each group, step of each version |
| `spans` | activities of workers |
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Iterable
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from roll.errors import RunStopped
from roll.journal.database import connect, report_damage
from roll.journal.events import (
    KINDS,
    Event,
    GroupAdmitted,
    GroupFailed,
    GroupFiltered,
    GroupReady,
    GroupStale,
    RolledBack,
    StepStarted,
    WeightsPublished,
    WeightsUpdated,
)
from roll.journal.packing import unpack
from roll.journal.records import JournalEntry
from roll.report.outcomes import OutcomeTracker
from roll.watch.texts import TextDecoder, searchable

_TABLES = """
CREATE TABLE samples (
    id INTEGER PRIMARY KEY, "group" INTEGER, sibling INTEGER, task TEXT, domain TEXT, ended REAL, status TEXT,
    reward REAL, reason TEXT, tokens INTEGER, oldest INTEGER, newest INTEGER, surplus INTEGER, step INTEGER,
    rolled_back INTEGER DEFAULT 0, staleness INTEGER, advantage REAL, outcome TEXT);
CREATE INDEX samples_by_group ON samples ("group", sibling);
CREATE INDEX samples_by_step ON samples (step, domain, "group", reward);
CREATE INDEX samples_by_domain ON samples (domain, status, outcome);
CREATE INDEX samples_by_reward ON samples (reward, id);
CREATE TABLE texts (id INTEGER PRIMARY KEY, prompt TEXT, response TEXT, comment TEXT, text TEXT);
CREATE VIRTUAL TABLE words USING fts5(text, content='', tokenize='trigram', detail=none, columnsize=0);
CREATE TABLE events (id INTEGER PRIMARY KEY, time REAL, kind TEXT, step INTEGER, version INTEGER, "group" INTEGER);
CREATE INDEX events_by_group ON events ("group") WHERE "group" IS NOT NULL;
CREATE INDEX events_by_kind ON events (kind);
CREATE INDEX events_by_step ON events (step) WHERE step IS NOT NULL;
CREATE TABLE groups (
    id INTEGER PRIMARY KEY, outcome TEXT, birth INTEGER, admitted REAL, task TEXT, domain TEXT, ready REAL,
    step INTEGER);
CREATE INDEX groups_by_outcome ON groups (outcome);
CREATE TABLE versions (version INTEGER PRIMARY KEY, step INTEGER, time REAL, event INTEGER, void INTEGER DEFAULT 0);
CREATE TABLE spans (id INTEGER PRIMARY KEY, worker TEXT, activity TEXT, start REAL, "end" REAL);
CREATE INDEX spans_by_end ON spans ("end");
CREATE INDEX spans_by_worker ON spans (worker, "end");
"""
_ADD_SAMPLES = """INSERT OR REPLACE INTO samples
    SELECT id, "group", sibling, task, domain, ended, status, reward, reason, tokens,
        (SELECT MIN(CAST(key AS INTEGER)) FROM json_each(versions)),
        (SELECT MAX(CAST(key AS INTEGER)) FROM json_each(versions)), surplus, NULL, 0, NULL, NULL,
        CASE WHEN status IN ('finished', 'truncated') THEN 'waiting'
            WHEN status IN ('aborted', 'stale', 'filtered') THEN status ELSE 'failed' END
    FROM journal.trajectories WHERE id > ? AND id <= ?"""
_ADD_STEPS = """UPDATE samples SET rolled_back = s.rolled_back,
    step = CASE WHEN s.rolled_back THEN NULL ELSE s.step END,
    staleness = CASE WHEN s.rolled_back THEN NULL ELSE
        s.step - 1 - (SELECT versions.step FROM versions WHERE version = oldest) END
    FROM (SELECT value, step, rolled_back, MAX(step_groups.id - (rolled_back << 40))
          FROM journal.step_groups, json_each(attempts)
          WHERE step_groups.id > ? GROUP BY value) AS s WHERE samples.id = s.value"""
_ADD_ADVANTAGES = """UPDATE samples SET advantage = a.mean
    FROM (SELECT CAST(g.key AS INTEGER) AS "group", CAST(s.key AS INTEGER) AS sibling, s.value AS mean,
              json_extract(body, '$.step') AS step
          FROM journal.events AS e, json_each(e.body, '$.advantages') AS g, json_each(g.value) AS s
          WHERE e.kind = 'AdvantagesAssigned' AND e.id > ? AND e.id <= ?) AS a
    WHERE samples."group" = a."group" AND samples.sibling = a.sibling AND samples.step = a.step"""
_SET_OUTCOMES = """UPDATE samples SET outcome = CASE
        WHEN rolled_back THEN 'rolled_back'
        WHEN surplus AND g.outcome IN ('trained', 'refused', 'waiting') THEN 'aborted'
        WHEN g.outcome IN ('trained', 'refused') AND samples.step IS NULL THEN 'stale' ELSE g.outcome END
    FROM groups AS g WHERE samples."group" = g.id AND status IN ('finished', 'truncated')"""
_UNDO_STEPS = """UPDATE samples SET rolled_back = 1, step = NULL, staleness = NULL, advantage = NULL WHERE step > ?"""
_FIRST_UNDONE = """SELECT MIN(id) FROM journal.step_groups
    WHERE "group" IN (SELECT "group" FROM journal.step_groups WHERE step > ?)"""
"""An earlier step that trained on the same group counts again."""
_UNDO_GROUPS = """UPDATE groups SET step = (SELECT MAX(s.step) FROM journal.step_groups AS s
    WHERE s."group" = groups.id AND s.step <= ? AND NOT s.rolled_back) WHERE step > ?"""
_ADD_EVENTS = """INSERT INTO events SELECT id, time, kind, step, version, "group" FROM journal.events
    WHERE id > ? AND id <= ?"""
_EVENTS = "SELECT id, time, kind, body FROM journal.events WHERE id > ? AND id <= ?"
_MARK_SURPLUS = """UPDATE samples SET surplus = t.surplus FROM journal.trajectories AS t
    WHERE samples.id = t.id AND samples."group" = ? AND t."group" = ?"""
_TRACKED = (
    *(GroupAdmitted, GroupReady, GroupFailed, GroupFiltered, GroupStale),
    *(StepStarted, WeightsUpdated, WeightsPublished, RolledBack),
)
_ROWS = 20_000
"""Ids per transaction."""
_BODIES = 64
"""Attempts that are decoded per transaction."""
_MANY = 1000
"""Changed groups from which one statement over all attempts is faster than one per group."""


class SampleIndex:
    """The index and its progress; all methods but `connect` are for one thread."""

    def __init__(self, journal: Path, folder: Path, decoder: TextDecoder) -> None:
        connect(journal, write=False).close()  # one line for another format, or a file that is no journal
        self._journal, self._path, self._decoder = journal, folder / "index.db", decoder
        self._connection = _open(self._path, "rwc")
        for pragma in ("journal_mode = WAL", "synchronous = OFF", "cache_size = -65536"):
            self._connection.execute(f"PRAGMA {pragma}")
        self._connection.executescript(f"BEGIN; {_TABLES} COMMIT;")
        self._tracker = OutcomeTracker()
        self._pending = _PendingChanges()
        self._last_step_group = self._last_advantages = self._last_span = 0
        self._text_high, self._text_low = -1, 0
        self.position = 0
        """Id of the last event in the index."""
        self.complete = False
        """Whether all rows of the journal were in the index after the last update."""
        self.consistent = True
        """False if an update failed halfway, so that the index has to be built again."""
        self.num_samples = self.num_texts = self.total = 0
        """Attempts in the index, with texts in the index, and in the journal, as of the last update."""

    @contextmanager
    def connect(self) -> Generator[sqlite3.Connection]:
        """A connection that only reads the index and, as `journal`, the journal; for the block."""
        with closing(_open(self._path, "ro")) as connection:
            connection.execute("PRAGMA mmap_size = 1073741824")
            connection.execute("PRAGMA busy_timeout = 2000")
            connection.execute("ATTACH ? AS journal", (_uri(self._journal, "ro"),))
            yield connection

    def close(self) -> None:
        self._connection.close()

    def update(self) -> None:
        """Copy what was appended to the journal, at most some thousand ids."""
        with self._writing():
            last = self._number("SELECT MAX(id) FROM journal.events")
            last = max(last, self._number("SELECT MAX(id) FROM journal.trajectories"))
            self._check_origin()
            until = min(last, self.position + _ROWS)
            self.consistent = False
            self._add_rows(self.position, until)
            if until == last:
                self._add_steps(until)
            self._add_spans()
            self.total = self._number("SELECT COUNT(*) FROM journal.trajectories")
        self.position, self.complete, self.consistent = until, until == last, True

    def _check_origin(self) -> None:
        """Note if the journal begins with another event than the one in the index, as after `--overwrite`."""
        first = "SELECT time FROM {} ORDER BY id LIMIT 1"
        time, indexed = (self._execute(first.format(table)).fetchone() for table in ("journal.events", "main.events"))
        if indexed is not None and time != indexed:
            self.consistent = False
            raise RunStopped("the journal is another one than before; it is read again")

    def update_texts(self) -> bool:
        """Decode some attempts, those that ended after the index began first; whether there may be more."""
        with self._writing():
            if self._text_high < 0:
                self._text_high, self._text_low = self.position, self.position + 1
            newer, older = (self._text_high, self.position), (0, self._text_low - 1)
            rows = self._bodies(*newer, "ASC")
            if rows:
                self._text_high = rows[-1][0]
            else:
                rows = self._bodies(*older, "DESC")
                self._text_low = rows[-1][0] if rows else 1
            self._add_texts(rows)
        self.num_texts += len(rows)
        return bool(rows)

    def _bodies(self, after: int, until: int, order: str) -> list[tuple[int, bytes]]:
        query = f"SELECT id, body FROM journal.bodies WHERE id > ? AND id <= ? ORDER BY id {order} LIMIT ?"
        return self._execute(query, (after, until, _BODIES)).fetchall()

    def _add_rows(self, after: int, until: int) -> None:
        """Copy the rows of a range of ids, and follow the groups in it."""
        if until == after:
            return
        self._execute(_ADD_SAMPLES, (after, until))
        self._execute(_ADD_EVENTS, (after, until))
        kinds = [kind.__name__ for kind in _TRACKED]
        query = f"{_EVENTS} AND kind IN ({', '.join('?' * len(kinds))}) ORDER BY id"
        for id, time, kind, body in self._execute(query, (after, until, *kinds)).fetchall():
            event = msgspec.json.decode(body, type=KINDS[kind])
            self._tracker.apply(JournalEntry(id=id, time=time, event=event))
            self._pending.add(event)
            for statement, values in _row_updates(id, time, event):
                self._execute(statement, values)
        self.num_samples = self._number("SELECT COUNT(*) FROM samples")

    def _add_steps(self, until: int) -> None:
        """Steps, advantages and outcomes of all rows that have changed."""
        pending, self._pending = self._pending, _PendingChanges()
        changed = pending.groups
        if pending.rolled_back_to is not None:
            changed = self._roll_back(pending.rolled_back_to)
        elif pending.steps:
            numbers = ", ".join(map(str, pending.steps))
            changed |= {row[0] for row in self._execute(f"SELECT id FROM groups WHERE step IN ({numbers})")}
        self._execute(_ADD_STEPS, (self._last_step_group,))
        self._execute(_ADD_ADVANTAGES, (self._last_advantages, until))
        self._connection.executemany(_MARK_SURPLUS, [(group, group) for group in pending.surplus])
        outcomes = [(str(self._tracker.outcome_of(group)), group) for group in changed]
        self._connection.executemany("UPDATE groups SET outcome = ? WHERE id = ?", outcomes)
        if len(changed) > _MANY:
            self._execute(_SET_OUTCOMES)
        else:
            self._connection.executemany(f"{_SET_OUTCOMES} AND g.id = ?", [(group,) for group in changed])
        self._last_step_group, self._last_advantages = self._number("SELECT MAX(id) FROM journal.step_groups"), until

    def _roll_back(self, to_step: int) -> set[int]:
        """Undo later steps; returns all groups, since any of them may have another outcome now.

        The attempts of steps that count again are read again from the journal.
        """
        self._execute(_UNDO_STEPS, (to_step,))
        voided = [(version,) for version in self._tracker.void]
        self._connection.executemany("UPDATE versions SET void = 1 WHERE version = ?", voided)
        first = self._number(_FIRST_UNDONE, (to_step,))
        self._last_step_group = min(self._last_step_group, max(0, first - 1))
        return {row[0] for row in self._execute("SELECT id FROM groups")}

    def _add_spans(self) -> None:
        query = """INSERT INTO spans SELECT id, worker, activity, start, "end" FROM journal.spans
            WHERE id > ? ORDER BY id LIMIT ?"""
        self._execute(query, (self._last_span, 10 * _ROWS))
        self._last_span = self._number("SELECT MAX(id) FROM spans")

    def _add_texts(self, rows: Iterable[tuple[int, bytes]]) -> None:
        texts = [(id, *map(_clean, searchable(unpack(body), self._decoder))) for id, body in rows]
        self._connection.executemany("INSERT OR REPLACE INTO texts VALUES (?, ?, ?, ?, ?)", texts)
        words = [(row[0], row[-1]) for row in texts]
        self._connection.executemany("INSERT INTO words (rowid, text) VALUES (?, ?)", words)

    @contextmanager
    def _writing(self) -> Generator[None]:
        """One transaction, within which all reads of the journal see the same state.

        The journal is not kept open: the last connection of a run's process that closes it has to be the only one, to
        move everything from the write-ahead log into the file.
        """
        with report_damage(self._journal):
            self._connection.execute("ATTACH ? AS journal", (_uri(self._journal, "ro"),))
            try:
                with self._connection:
                    self._connection.execute("BEGIN")
                    yield
            finally:
                self._connection.execute("DETACH journal")

    def _execute(self, statement: str, values: tuple[Any, ...] = ()) -> sqlite3.Cursor:
        return self._connection.execute(statement, values)

    def _number(self, query: str, values: tuple[Any, ...] = ()) -> int:
        return int(self._execute(query, values).fetchone()[0] or 0)


@dataclass(slots=True)
class _PendingChanges:
    """Changes that need all rows of the journal."""

    groups: set[int] = field(default_factory=set[int])
    """Groups whose outcome may have changed."""
    surplus: set[int] = field(default_factory=set[int])
    """Groups with surplus attempts."""
    steps: set[int] = field(default_factory=set[int])
    """Steps whose weights were updated."""
    rolled_back_to: int | None = None

    def add(self, event: Event) -> None:
        match event:
            case StepStarted(groups=groups):
                self.groups.update(groups)
            case WeightsUpdated(step=step):
                self.steps.add(step)
            case RolledBack(to_step=to_step):
                self.rolled_back_to = min(to_step, self.rolled_back_to or to_step)
            case GroupReady(group=group, siblings=siblings):
                self.groups.add(group)
                self.surplus.update([group] if siblings else [])
            case GroupAdmitted(group=group) | GroupFailed(group=group) | GroupFiltered(group=group):
                self.groups.add(group)
            case GroupStale(group=group):
                self.groups.add(group)
            case _:
                pass


def _open(path: Path, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(_uri(path, mode), uri=True, isolation_level=None, check_same_thread=False)


def _uri(path: Path, mode: str) -> str:
    return f"{path.absolute().as_uri()}?mode={mode}"


def _clean(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _row_updates(id: int, time: float, event: Event) -> list[tuple[str, tuple[Any, ...]]]:
    """Statements that add an event to `groups` and `versions`."""
    match event:
        case GroupAdmitted(group=group, task=task, domain=domain, birth=birth):
            statement = "INSERT OR REPLACE INTO groups VALUES (?, 'waiting', ?, ?, ?, ?, NULL, NULL)"
            return [(statement, (group, birth, time, task, domain))]
        case GroupReady(group=group):
            return [("UPDATE groups SET ready = ? WHERE id = ?", (time, group))]
        case StepStarted(step=step, groups=groups):
            return [("UPDATE groups SET step = ? WHERE id = ?", (step, group)) for group in groups]
        case RolledBack(to_step=to_step):
            return [(_UNDO_GROUPS, (to_step, to_step))]
        case WeightsPublished(version=version, step=step):
            return [("INSERT OR REPLACE INTO versions VALUES (?, ?, ?, ?, 0)", (version, step, time, id))]
        case _:
            return []
