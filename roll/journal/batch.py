"""Many things to write, as few statements, in the order they were given."""

from __future__ import annotations

import array
import sqlite3
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from roll.journal.events import Event, GroupReady, RolledBack, Taken
from roll.journal.packing import pack
from roll.journal.records import Chunk, Entry, Span, merge
from roll.types import Trajectory

_EVENT = "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?)"
_KEEP = """INSERT INTO trajectories
    ("group", sibling, task, domain, ended, status, reward, tokens, noted, versions, body)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
_NOTE = """INSERT INTO progress ("group", sibling, attempt, turn, context, ids, logprobs, version)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?)"""
_FORGET = 'DELETE FROM progress WHERE "group" = ? AND sibling = ?'
_SPAN = "INSERT INTO spans (worker, doing, began, ended) VALUES (?, ?, ?, ?)"
MARK_TAKEN = """UPDATE trajectories SET step = ?, undone = 0 WHERE id IN (
    SELECT MAX(id) FROM trajectories WHERE "group" = ? AND status IN ('finished', 'truncated') AND NOT spare
    GROUP BY sibling)"""
_SPARE = """UPDATE trajectories SET spare = 1 WHERE "group" = ? AND sibling NOT IN (SELECT value FROM json_each(?))"""
_UNDO = "UPDATE trajectories SET step = NULL, undone = 1 WHERE step > ?"
PRUNE = (
    # Each has an index of what is left to prune, so that it costs no more in a long run than in a short one.
    """DELETE FROM progress WHERE "group" IN (
    SELECT "group" FROM trajectories WHERE step < :step AND body IS NOT NULL)""",
    "UPDATE trajectories SET body = NULL WHERE step < :step AND body IS NOT NULL",
    """UPDATE trajectories SET body = NULL
    WHERE step IS NULL AND body IS NOT NULL AND status NOT IN ('finished', 'truncated')
    AND "group" < (SELECT MIN("group") FROM trajectories WHERE step >= :step)""",
)
_DURABLE = "INSERT OR REPLACE INTO durable VALUES (0, ?)"


@dataclass(frozen=True, slots=True)
class Keep:
    """A trajectory to be stored."""

    group: int
    trajectory: Trajectory
    ended: float
    """Seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Prune:
    """Tokens trained before this step are to go."""

    before_step: int


@dataclass(frozen=True, slots=True)
class Durable:
    """What was given so far has to survive a power cut."""

    position: int


Item: TypeAlias = "Entry[Event] | Keep | Chunk | Span | Prune | Durable"


class Batch:
    """What one transaction writes. Rows of a table go together; what changes rows waits for those before it."""

    def __init__(self, noted: dict[tuple[int, int], int]) -> None:
        self._noted = noted
        """By group and sibling, how many tokens of progress are on disk; carried on from batch to batch."""
        self._events: list[tuple[Any, ...]] = []
        self._kept: list[tuple[Any, ...]] = []
        self._chunks: dict[tuple[int, int], list[Chunk]] = {}
        self._ended: list[tuple[int, int]] = []
        self._spans: list[Span] = []
        self._statements: list[tuple[str, list[Any]]] = []
        self.durable = False

    def add(self, item: Item) -> None:
        """Put it at the end."""
        match item:
            case Entry():
                self._add_event(item)
            case Keep():
                self._add_kept(item)
            case Chunk():
                self._chunks.setdefault((item.group, item.sibling), []).append(item)
            case Span():
                self._spans.append(item)
            case Prune():
                for statement in PRUNE:
                    self._change(statement, {"step": item.before_step})
            case Durable():
                self.durable = True
                self._change(_DURABLE, (item.position,))

    def write(self, connection: sqlite3.Connection) -> None:
        """All of it or nothing, on the disk itself if it has to be durable."""
        self._settle()
        # A commit in FULL mode carries the earlier ones of NORMAL mode to the disk, but only if it writes.
        connection.execute(f"PRAGMA synchronous = {'FULL' if self.durable else 'NORMAL'}")
        with connection:
            connection.execute("BEGIN")
            for statement, rows in self._statements:
                connection.executemany(statement, rows)

    def _add_event(self, entry: Entry[Event]) -> None:
        event = entry.event
        columns = [getattr(event, name, None) for name in ("step", "version", "group")]
        body = msgspec.json.encode(event).decode()
        self._events.append((entry.id, entry.time, type(event).__name__, *columns, body))
        if isinstance(event, GroupReady) and event.siblings:
            self._change(_SPARE, (event.group, msgspec.json.encode(event.siblings).decode()))
        if isinstance(event, Taken):
            for group in event.groups:
                self._change(MARK_TAKEN, (event.step, group))
        if isinstance(event, RolledBack):
            self._change(_UNDO, (event.to_step,))

    def _add_kept(self, item: Keep) -> None:
        trajectory, packed = item.trajectory, pack(item.trajectory)
        about = (item.group, trajectory.sibling, trajectory.task.id, trajectory.task.domain, item.ended)
        reward = trajectory.reward if trajectory.status.valid else None
        versions = msgspec.json.encode(packed.versions).decode()
        noted = self._forget((item.group, trajectory.sibling))
        self._kept.append(
            (*about, trajectory.status.value, reward, trajectory.num_sampled, noted, versions, packed.body)
        )

    def _forget(self, attempt: tuple[int, int]) -> int:
        """The attempt's progress is to go; how many tokens that was."""
        chunks = self._chunks.pop(attempt, [])  # never on disk: they would vanish in this very transaction
        if attempt in self._noted:
            self._ended.append(attempt)
        return self._noted.pop(attempt, 0) + sum(len(chunk.ids) for chunk in chunks)

    def _change(self, statement: str, values: Any) -> None:
        self._settle()
        self._statements.append((statement, [values]))

    def _settle(self) -> None:
        """Put the rows gathered so far among the statements."""
        chunks = [chunk for each in self._chunks.values() for chunk in each]
        for chunk in chunks:
            attempt = (chunk.group, chunk.sibling)
            self._noted[attempt] = self._noted.get(attempt, 0) + len(chunk.ids)
        rows = {
            _EVENT: self._events,
            _KEEP: self._kept,
            _FORGET: self._ended,  # before the chunks: those of a next attempt stay
            _NOTE: [_chunk_row(chunk) for chunk in chunks],
            _SPAN: [(span.worker, span.doing, span.began, span.ended) for span in merge(self._spans)],
        }
        self._statements += [(statement, found) for statement, found in rows.items() if found]
        self._events, self._kept, self._chunks, self._ended, self._spans = [], [], {}, [], []


def _chunk_row(chunk: Chunk) -> tuple[Any, ...]:
    about = (chunk.group, chunk.sibling, chunk.attempt, chunk.turn, chunk.context)
    return (*about, array.array("i", chunk.ids).tobytes(), array.array("f", chunk.logprobs).tobytes(), chunk.version)
