"""The journal of a run: one thread of the controller writes it, and any process may read it at the same time.

| call | waits for | woken by |
|---|---|---|
| `record*`, `prune` | nothing (see `writer`) | |
| `flush`, every read of the writing journal | the commit; with `durable`, the disk | the writer thread |
| every read of a `Reader` | nothing: it sees the last commit | |

After a failed write every call raises its error: a run cannot continue without its journal.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np

from roll.errors import ConfigError, RunStopped, one_line
from roll.journal.batch import PruneBodies, StoreTrajectory, SyncToDisk
from roll.journal.database import connect, report_damage
from roll.journal.events import KINDS, Event, TrajectoryEnded
from roll.journal.packing import unpack
from roll.journal.records import (
    ActivitySpan,
    Chunk,
    E,
    JournalEntry,
    JournalTally,
    KindCount,
    StoredTrajectory,
    TokenValues,
    TrajectoryQuery,
    merge,
)
from roll.journal.writer import Writer
from roll.planted import fail_if_planted
from roll.types import Status, Trajectory

_PAGE = 256
"""Rows per read. No read stays open between pages, so a slow reader blocks nothing."""


class Reader:
    """Read access to a journal, also while a run writes it."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise ConfigError(f"{path}: no journal here; give the directory of a run that has begun")
        self.path, self._connection = path, connect(path, write=False)

    def position(self) -> int:
        """Id of the last event."""
        return max(self._number(f"SELECT COALESCE(MAX(id), 0) FROM {table}") for table in ("events", "trajectories"))

    def began(self) -> float:
        """Time of the first event, which no two journals share; 0 without events."""
        self._catch_up()
        return next((row[0] for row in self._fetch("SELECT time FROM events ORDER BY id LIMIT 1", {})), 0.0)

    def damage(self) -> list[str]:
        """Faults that SQLite finds in the file; empty if it is intact."""
        try:
            lines = [one_line(str(row[0])) for row in self._connection.execute("PRAGMA quick_check").fetchall()]
        except sqlite3.DatabaseError as error:
            return [str(error)]
        return [] if lines == ["ok"] else lines

    def last_group(self) -> int:
        """The highest group id ever admitted, also by an earlier process; -1 if there is none."""
        return self._number('SELECT COALESCE(MAX("group"), -1) FROM events')

    @contextmanager
    def snapshot(self) -> Generator[None]:
        """All reads inside this block see the same state, also while a run writes."""
        self._catch_up()
        self._connection.execute("BEGIN")
        try:
            yield
        finally:
            self._connection.rollback()  # a read of a damaged page may have ended it

    def events(self, kind: type[E] = Event, *, after: int = 0) -> Iterator[JournalEntry[E]]:
        """Events of one kind, or of all kinds, with ids above `after`, in order."""
        queries = [] if kind is TrajectoryEnded else [_EVENTS if kind is Event else f"{_EVENTS} AND kind = :kind"]
        if kind in (Event, TrajectoryEnded):
            queries.append(_ENDS)
        for row in self._rows(" UNION ALL ".join(queries), {"after": after, "kind": kind.__name__}):
            with report_damage(self.path):
                event = _parse_end(row) if row[2] is None else msgspec.json.decode(row[3], type=KINDS[row[2]])
            yield JournalEntry(id=row[0], time=row[1], event=cast(E, event))

    def tally(self, *, after: int = 0) -> JournalTally:
        """Numbers of events with ids above `after`; much faster than reading them."""
        with self.snapshot(), report_damage(self.path):
            kinds = self._connection.execute(KINDS_SINCE, (after,)).fetchall()
            ended = self._connection.execute(STATUSES_SINCE, (after,)).fetchall()
        ids = [row[2] for row in (*kinds, *ended)]
        return JournalTally(
            position=max(ids, default=after),
            kinds={
                kind: KindCount(number=number, id=id, time=time, step=step, version=version)
                for kind, number, id, time, step, version in kinds
            },
            ended={Status(status): number for status, number, _ in ended},
        )

    def trajectories(self, query: TrajectoryQuery | None = None) -> Iterator[StoredTrajectory]:
        """The stored trajectories, in the order they ended."""
        query = query or TrajectoryQuery()
        columns = {"id": query.id, "group": query.group, "domain": query.domain, "status": query.status}
        values: dict[str, Any] = {name: value for name, value in columns.items() if value is not None}
        conditions = [f'"{name}" = :{name}' for name in values]
        if query.step is not None:
            conditions.append(_OF_STEP)
            values["step"] = query.step
        where, after = " AND ".join(conditions) or "1", 0
        if query.last is not None:
            newest = f"SELECT id FROM trajectories WHERE {where} ORDER BY id DESC LIMIT {query.last}"
            after = self._number(f"SELECT COALESCE(MIN(id), 1) - 1 FROM ({newest})", values)
        table = "trajectories LEFT JOIN bodies USING (id)" if query.bodies else "trajectories"
        body = "body" if query.bodies else "NULL"
        statement = f"SELECT {_TRAJECTORY}, {_STEP}, {body} FROM {table} WHERE id > :after AND {where}"
        return map(self._parse_trajectory, self._rows(statement, {**values, "after": after}))

    def _parse_trajectory(self, row: tuple[Any, ...]) -> StoredTrajectory:
        with report_damage(self.path):
            return _parse_trajectory(row)

    def progress(self, group: int | None = None) -> list[Chunk]:
        """Sampled parts of unfinished responses, of one group or of all: by sibling, in order."""
        self._catch_up()
        where = "" if group is None else 'WHERE "group" = ?'
        query = f'SELECT {_CHUNK} FROM progress {where} ORDER BY "group", sibling, id'
        with report_damage(self.path):
            rows = self._connection.execute(query, () if group is None else (group,)).fetchall()
            return [_parse_chunk(row) for row in rows]

    def num_deleted_progress(self) -> int:
        """Tokens of progress that was deleted because steps had trained on other siblings."""
        return self._number("SELECT COALESCE(SUM(tokens), 0) FROM deleted_progress")

    def spans(self) -> Iterator[ActivitySpan]:
        """Activities of all workers, in order for each worker."""
        rows = self._rows('SELECT id, worker, activity, start, "end" FROM spans WHERE id > :after', {"after": 0})
        return merge(
            ActivitySpan(worker=worker, activity=activity, start=start, end=end)
            for _, worker, activity, start, end in rows
        )

    def close(self) -> None:
        self._connection.close()

    def _number(self, query: str, values: dict[str, Any] | None = None) -> int:
        self._catch_up()
        with report_damage(self.path):
            return int(self._connection.execute(query, values or {}).fetchone()[0])

    def _rows(self, query: str, values: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
        """The rows of a query for ids above `:after`, read page by page."""
        self._catch_up()
        while rows := self._fetch(f"{query} ORDER BY id LIMIT {_PAGE}", values):
            yield from rows
            values = {**values, "after": rows[-1][0]}

    def _fetch(self, query: str, values: dict[str, Any]) -> list[tuple[Any, ...]]:
        with report_damage(self.path):
            return self._connection.execute(query, values).fetchall()

    def _catch_up(self) -> None:
        """Before a read: nothing, since a reader sees what is committed; the writing journal commits first."""


class Journal(Reader):
    """Read and write access for the run itself. Creates the file, or appends to it."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        writing = connect(path, write=True)
        self._writer = Writer(path, writing)
        super().__init__(path)
        self._position = super().position()
        self._closed = False
        self._before_close: list[Callable[[], None]] = []

    def record(self, event: Event) -> int:
        """Append an event that happens now; returns its id. On disk after the next `flush`."""
        assert type(event) is not TrajectoryEnded, "use record_trajectory"
        fail_if_planted("record")
        self._position += 1
        self._writer.put(JournalEntry(id=self._position, time=time.time(), event=event))
        return self._position

    def record_trajectory(self, group: int, trajectory: Trajectory) -> int:
        """Store a trajectory, which is also the event `TrajectoryEnded`, and drop its progress; returns the event's id.

        Call it once per attempt, before a step starts to train on its group.
        """
        self._position += 1
        self._writer.put(StoreTrajectory(id=self._position, group=group, trajectory=trajectory, ended=time.time()))
        return self._position

    def record_token_values(self, attempts: Iterable[TokenValues]) -> None:
        """Store what a step computed for the tokens of its attempts, until `prune` deletes these."""
        for values in attempts:
            self._writer.put(values)

    def record_progress(self, chunk: Chunk) -> None:
        """Store part of a response until its trajectory is stored."""
        self._writer.put(chunk)

    def record_span(self, worker: str, activity: str, start: float, end: float) -> None:
        """Store a worker's activity between two times, in seconds since 1970."""
        self._writer.put(ActivitySpan(worker=worker, activity=activity, start=start, end=end))

    def prune(self, before_step: int) -> None:
        """Delete the tokens of groups trained before that step, and of older failures; events remain."""
        self._writer.put(PruneBodies(before_step))

    def flush(self, durable: bool = False) -> None:
        """Commit all pending items; with `durable`, return once they survive a power cut."""
        if durable:
            self._writer.put(SyncToDisk(self._position))
        self._writer.commit()

    def position(self) -> int:
        """Id of the last recorded event, flushed or not."""
        return self._position

    def before_close(self, callback: Callable[[], None]) -> None:
        """Call `callback`, which may still record, when the journal closes."""
        self._before_close.append(callback)

    def close(self) -> None:
        """Write all pending items and close the file; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        with suppress(RunStopped):  # raised again below
            for callback in self._before_close:
                callback()
        try:
            self._writer.put(SyncToDisk(self._position))
        finally:
            super().close()
            self._writer.close()

    def _catch_up(self) -> None:
        self._writer.commit()


class Activity:
    """The spans of one worker, which does one thing at a time; the name of a wait begins with "idle: "."""

    def __init__(self, journal: Journal, worker: str, clock: Callable[[], float] = time.time) -> None:
        self._journal, self._worker, self._clock = journal, worker, clock
        self._current: str | None = None
        self._start = 0.0
        journal.before_close(self.close)

    def enter(self, activity: str) -> None:
        """Start this activity, unless it is the current one."""
        if activity != self._current:
            self._switch(activity)

    def close(self) -> None:
        """End the current activity."""
        self._switch(None)

    def _switch(self, activity: str | None) -> None:
        now = self._clock()
        if self._current is not None:
            self._journal.record_span(self._worker, self._current, self._start, now)
        self._current, self._start = activity, now


_EVENTS = "SELECT id, time, kind, body, NULL, NULL, NULL, NULL, NULL, NULL FROM events WHERE id > :after"
KINDS_SINCE = "SELECT kind, COUNT(*), MAX(id), time, step, version FROM events WHERE id > ? GROUP BY +kind"
"""SQLite takes the columns without an aggregate from the row with the highest id. The plus keeps it from reading the
whole index of kinds: only the new rows are read."""
STATUSES_SINCE = "SELECT status, COUNT(*), MAX(id) FROM trajectories WHERE id > ? GROUP BY status"
_ENDS = """SELECT id, ended, NULL, versions, "group", sibling, status, reward, reason, tokens FROM trajectories
    WHERE id > :after"""
_TRAJECTORY = 'id, "group", sibling, task, domain, ended, status, reward, tokens, progress_tokens, versions, surplus'
_STEP = """(SELECT CASE WHEN rolled_back THEN -1 ELSE step END FROM step_groups
    WHERE step_groups."group" = trajectories."group" AND trajectories.id IN (SELECT value FROM json_each(attempts))
    ORDER BY rolled_back, step_groups.id DESC LIMIT 1)"""
"""Last step that trained on the trajectory; -1 if all of them were rolled back."""
_OF_STEP = "id IN (SELECT value FROM step_groups, json_each(attempts) WHERE step = :step AND NOT rolled_back)"
_CHUNK = '"group", sibling, attempt, turn, context, ids, logprobs, version'


def _parse_end(row: tuple[Any, ...]) -> TrajectoryEnded:
    encoded, group, sibling, status, reward, reason, tokens = row[3:]
    versions = msgspec.json.decode(encoded, type=dict[int, int])
    return TrajectoryEnded(
        group=group,
        sibling=sibling,
        status=Status(status),
        reward=reward,
        reason=reason,
        num_tokens=tokens,
        versions=(min(versions), max(versions)) if versions else None,
    )


def _parse_trajectory(row: tuple[Any, ...]) -> StoredTrajectory:
    *columns, status, reward, tokens, progress, versions, surplus, step, body = row
    return StoredTrajectory(
        **dict(zip(("id", "group", "sibling", "task", "domain", "ended"), columns, strict=True)),
        status=Status(status),
        reward=reward,
        num_tokens=tokens,
        num_progress=progress,
        versions=msgspec.json.decode(versions, type=dict[int, int]),
        step=None if step == -1 else step,
        rolled_back=step == -1,
        surplus=bool(surplus),
        trajectory=None if body is None else unpack(body),
    )


def _parse_chunk(row: tuple[Any, ...]) -> Chunk:
    *numbers, ids, logprobs, version = row
    names = ("group", "sibling", "attempt", "turn", "context")
    return Chunk(
        **dict(zip(names, numbers, strict=True)),
        ids=np.frombuffer(ids, np.int32),
        logprobs=np.frombuffer(logprobs, np.float32),
        version=version,
    )
