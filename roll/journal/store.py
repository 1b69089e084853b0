"""The journal of a run: written by the controller's thread alone, read by anyone meanwhile.

call — waits for — woken by: `record`, `keep`, `note`, `span`, `prune` — nothing (see `writer`); `flush`, and whatever
the writing journal reads — the commit, with `durable` the disk; readers — nothing, they see the last commit. What is
recorded after a failure to write, or is read or closed then, is told of it: the run cannot go on without its journal.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec
import numpy as np

from roll.errors import ConfigError, RunStopped
from roll.journal.batch import Durable, Keep, Prune
from roll.journal.database import connect
from roll.journal.events import KINDS, Event, TrajectoryEnded
from roll.journal.packing import unpack
from roll.journal.records import Chunk, Entry, Kept, Span, Wanted, merge
from roll.journal.writer import Writer
from roll.types import Status, Trajectory

E = TypeVar("E", bound=Event)
_PAGE = 256
"""Rows read at a time. No read stays open between pages, so that a slow reader holds nothing up."""


class Reader:
    """A journal opened to be read, also while a run writes it."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise ConfigError(f"{path}: no journal here; give the directory of a run that has begun")
        self._connection = connect(path, write=False)

    def position(self) -> int:
        """Id of the last event."""
        return max(self._number(f"SELECT COALESCE(MAX(id), 0) FROM {table}") for table in ("events", "trajectories"))

    def last_group(self) -> int:
        """The highest ticket that was ever given out, also by an earlier process; -1 if none was."""
        return self._number('SELECT COALESCE(MAX("group"), -1) FROM events')

    @contextmanager
    def steady(self) -> Generator[None]:
        """Inside this block everything is read as of one moment, whatever a run writes meanwhile."""
        self._catch_up()
        self._connection.execute("BEGIN")
        try:
            yield
        finally:
            self._connection.execute("COMMIT")

    def events(self, kind: type[E] = Event, *, after: int = 0) -> Iterator[Entry[E]]:
        """Events of one kind, or of all, later than the event `after`, in order."""
        queries = [] if kind is TrajectoryEnded else [_EVENTS if kind is Event else f"{_EVENTS} AND kind = :kind"]
        if kind in (Event, TrajectoryEnded):
            queries.append(_ENDS)
        for row in self._rows(" UNION ALL ".join(queries), {"after": after, "kind": kind.__name__}):
            event = _ended(row) if row[2] is None else msgspec.json.decode(row[3], type=KINDS[row[2]])
            yield Entry(id=row[0], time=row[1], event=cast(E, event))

    def trajectories(self, wanted: Wanted | None = None) -> Iterator[Kept]:
        """The trajectories that were kept, in the order they ended."""
        wanted = wanted or Wanted()
        about = {'"group"': wanted.group, "domain": wanted.domain, "status": wanted.status}
        chosen = {name: value for name, value in about.items() if value is not None}
        conditions = [f"{name} = :{name.strip(chr(34))}" for name in chosen]
        values: dict[str, Any] = {name.strip('"'): value for name, value in chosen.items()}
        if wanted.step is not None:
            conditions.append(_OF_STEP)
            values["step"] = wanted.step
        where, after = " AND ".join(conditions) or "1", 0
        if wanted.last is not None:
            newest = f"SELECT id FROM trajectories WHERE {where} ORDER BY id DESC LIMIT {wanted.last}"
            after = self._number(f"SELECT COALESCE(MIN(id), 1) - 1 FROM ({newest})", values)
        table = "trajectories LEFT JOIN bodies USING (id)" if wanted.bodies else "trajectories"
        body = "body" if wanted.bodies else "NULL"
        query = f"SELECT {_KEPT}, {_MARK}, {body} FROM {table} WHERE id > :after AND {where}"
        return (_kept(row) for row in self._rows(query, {**values, "after": after}))

    def progress(self, group: int | None = None) -> list[Chunk]:
        """What was sampled of replies under way, of one group or of all: sibling by sibling, in order."""
        self._catch_up()
        where = "" if group is None else 'WHERE "group" = ?'
        query = f'SELECT {_CHUNK} FROM progress {where} ORDER BY "group", sibling, id'
        return [_chunk(row) for row in self._connection.execute(query, () if group is None else (group,)).fetchall()]

    def spans(self) -> Iterator[Span]:
        """What workers did, each worker's in order."""
        rows = self._rows("SELECT id, worker, doing, began, ended FROM spans WHERE id > :after", {"after": 0})
        return merge(
            Span(worker=worker, doing=doing, began=began, ended=ended) for _, worker, doing, began, ended in rows
        )

    def close(self) -> None:
        self._connection.close()

    def _number(self, query: str, values: dict[str, Any] | None = None) -> int:
        self._catch_up()
        return int(self._connection.execute(query, values or {}).fetchone()[0])

    def _rows(self, query: str, values: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
        """The rows of a query that asks for ids beyond `:after`, a page at a time."""
        self._catch_up()
        while rows := self._connection.execute(f"{query} ORDER BY id LIMIT {_PAGE}", values).fetchall():
            yield from rows
            values = {**values, "after": rows[-1][0]}

    def _catch_up(self) -> None:
        """A reader has what is committed; whoever writes sees to it that this is all."""


class Journal(Reader):
    """The journal of the run that writes it. Made at its first use, continued afterwards."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        writing = connect(path, write=True)
        self._writer = Writer(path, writing)
        super().__init__(path)
        self._position = super().position()
        self._closed = False
        self._before_close: list[Callable[[], None]] = []

    def record(self, event: Event) -> int:
        """Note that something happened now; gives the event's id. On disk after the next `flush`."""
        assert type(event) is not TrajectoryEnded, "what has ended is kept"
        self._position += 1
        self._writer.put(Entry(id=self._position, time=time.time(), event=event))
        return self._position

    def keep(self, group: int, trajectory: Trajectory) -> int:
        """Store a trajectory, which is the event `TrajectoryEnded`, whose id this gives; its progress is gone.

        Call it once for each attempt, before its group is taken.
        """
        self._position += 1
        self._writer.put(Keep(id=self._position, group=group, trajectory=trajectory, ended=time.time()))
        return self._position

    def note(self, chunk: Chunk) -> None:
        """Store part of a reply, for as long as the trajectory it belongs to is not kept."""
        self._writer.put(chunk)

    def span(self, worker: str, doing: str, began: float, ended: float) -> None:
        """Store what a worker did between two times, in seconds since 1970."""
        self._writer.put(Span(worker=worker, doing=doing, began=began, ended=ended))

    def prune(self, before_step: int) -> None:
        """Drop tokens trained before that step or broken off beside them, and of older failures; events stay."""
        self._writer.put(Prune(before_step))

    def flush(self, durable: bool = False) -> None:
        """Commit what is pending; with `durable` it has survived a power cut when this returns."""
        if durable:
            self._writer.put(Durable(self._position))
        self._writer.settle()

    def position(self) -> int:
        """Id of the last event recorded, flushed or not."""
        return self._position

    def before_close(self, last: Callable[[], None]) -> None:
        """Let someone write a last line when the journal closes."""
        self._before_close.append(last)

    def close(self) -> None:
        """Write what is pending and let go of the file; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        with suppress(RunStopped):  # told again below
            for last in self._before_close:
                last()
        try:
            self._writer.put(Durable(self._position))
        finally:
            super().close()
            self._writer.close()

    def _catch_up(self) -> None:
        self._writer.settle()


_EVENTS = "SELECT id, time, kind, body, NULL, NULL, NULL, NULL, NULL, NULL FROM events WHERE id > :after"
_ENDS = """SELECT id, ended, NULL, versions, "group", sibling, status, reward, reason, tokens FROM trajectories
    WHERE id > :after"""
_KEPT = 'id, "group", sibling, task, domain, ended, status, reward, tokens, noted, versions, spare'
_MARK = """(SELECT CASE WHEN undone THEN -1 ELSE step END FROM taken
    WHERE taken."group" = trajectories."group" AND trajectories.id IN (SELECT value FROM json_each(attempts))
    ORDER BY taken.id DESC LIMIT 1)"""
"""The step that trained it; -1 where that was undone."""
_OF_STEP = "id IN (SELECT value FROM taken, json_each(attempts) WHERE step = :step AND NOT undone)"
_CHUNK = '"group", sibling, attempt, turn, context, ids, logprobs, version'


def _ended(row: tuple[Any, ...]) -> TrajectoryEnded:
    versions, group, sibling, status, reward, reason, tokens = row[3:]
    found = msgspec.json.decode(versions, type=dict[int, int])
    return TrajectoryEnded(
        group=group,
        sibling=sibling,
        status=Status(status),
        reward=reward,
        reason=reason,
        num_tokens=tokens,
        versions=(min(found), max(found)) if found else None,
    )


def _kept(row: tuple[Any, ...]) -> Kept:
    id, group, sibling, task, domain, ended, status, reward, tokens, noted, versions, spare, mark, body = row
    return Kept(
        id=id,
        group=group,
        sibling=sibling,
        task=task,
        domain=domain,
        ended=ended,
        status=Status(status),
        reward=reward,
        num_tokens=tokens,
        num_noted=noted,
        versions=msgspec.json.decode(versions, type=dict[int, int]),
        step=None if mark == -1 else mark,
        undone=mark == -1,
        spare=bool(spare),
        trajectory=None if body is None else unpack(body),
    )


def _chunk(row: tuple[Any, ...]) -> Chunk:
    group, sibling, attempt, turn, context, ids, logprobs, version = row
    return Chunk(
        group=group,
        sibling=sibling,
        attempt=attempt,
        turn=turn,
        context=context,
        ids=np.frombuffer(ids, np.int32),
        logprobs=np.frombuffer(logprobs, np.float32),
        version=version,
    )
