"""Many things to write, as few statements, in the order they were given."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from roll.journal.events import Event, GroupReady, RolledBack, Taken
from roll.journal.packing import Texts, pack
from roll.journal.records import Chunk, Entry, Span, merge
from roll.types import Trajectory, record

_EVENT = "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?)"
_KEEP = """INSERT INTO trajectories
    (id, "group", sibling, task, domain, ended, status, reward, reason, tokens, noted, versions)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
_STORE = "INSERT INTO bodies VALUES (?, ?)"
_NOTE = """INSERT INTO progress ("group", sibling, attempt, turn, context, ids, logprobs, version)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?)"""
_FORGET = 'DELETE FROM progress WHERE "group" = ? AND sibling = ?'
_SPAN = "INSERT INTO spans (worker, doing, began, ended) VALUES (?, ?, ?, ?)"
MARK_TAKEN = """INSERT INTO taken (step, "group", attempts) SELECT :step, :group, json_group_array(id) FROM (
    SELECT MAX(id) AS id FROM trajectories
    WHERE "group" = :group AND status IN ('finished', 'truncated') AND NOT spare GROUP BY sibling)"""
_SPARE = """UPDATE trajectories SET spare = 1 WHERE "group" = ? AND sibling NOT IN (SELECT value FROM json_each(?))"""
_UNDO = "UPDATE taken SET undone = 1 WHERE step > ?"
_TRAINED = "step < :step AND stored AND NOT undone"
_FAILED = """stored AND status NOT IN ('finished', 'truncated')
    AND "group" < (SELECT MIN("group") FROM taken WHERE step >= :step AND NOT undone)"""
PRUNE = (
    # Each has an index of what is left to prune, so that it costs no more in a long run than in a short one.
    f'DELETE FROM progress WHERE "group" IN (SELECT "group" FROM taken WHERE {_TRAINED})',
    f"DELETE FROM bodies WHERE id IN (SELECT value FROM taken, json_each(attempts) WHERE {_TRAINED})",
    f"UPDATE taken SET stored = 0 WHERE {_TRAINED}",
    f"DELETE FROM bodies WHERE id IN (SELECT id FROM trajectories WHERE {_FAILED})",
    f"UPDATE trajectories SET stored = 0 WHERE {_FAILED}",
)
_ENCODER = msgspec.json.Encoder()
_DURABLE = "INSERT OR REPLACE INTO durable VALUES (0, ?)"


@record
class Keep:
    """A trajectory to be stored, which is also the event of its end."""

    id: int
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


@dataclass(frozen=True, slots=True)
class Whole:
    """What was given so far has to be in this transaction."""


Item: TypeAlias = "Entry[Event] | Keep | Chunk | Span | Prune | Durable | Whole"


class Stock:
    """What is on disk, as far as whoever writes has to know; carried on from batch to batch."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        noted = connection.execute('SELECT "group", sibling, SUM(LENGTH(ids)) / 4 FROM progress GROUP BY 1, 2')
        self.noted = {(int(group), int(sibling)): int(tokens) for group, sibling, tokens in noted.fetchall()}
        """By group and sibling, how many tokens of progress there are."""
        self.held: dict[tuple[int, int], list[Chunk]] = {}
        """By group and sibling, progress that is to be written with the next batch, if it is still needed then."""


class Batch:
    """What one transaction writes. Rows of a table go together; what changes rows waits for those before it.

    Progress waits for one batch more: most of it is of attempts that end meanwhile, and then it is never written.
    """

    def __init__(self, stock: Stock) -> None:
        self._stock, self._noted = stock, stock.noted
        self._events: list[tuple[Any, ...]] = []
        self._kept: list[tuple[Any, ...]] = []
        self._bodies: list[tuple[int, bytes]] = []
        self._chunks, self._new = stock.held, dict[tuple[int, int], list[Chunk]]()
        self._ended: list[tuple[int, int]] = []
        self._spans: list[Span] = []
        self._statements: list[tuple[str, list[Any]]] = []
        self._texts = Texts()
        self.durable = False

    def add(self, item: Item) -> None:
        """Put it at the end."""
        match item:
            case Entry():
                self._add_event(item)
            case Keep():
                self._add_kept(item)
            case Chunk():
                self._new.setdefault((item.group, item.sibling), []).append(item)
            case Span():
                self._spans.append(item)
            case Prune():
                self._age()
                for statement in PRUNE:
                    self._change(statement, {"step": item.before_step})
            case Whole():
                self._age()
            case Durable():
                self.durable = True
                self._age()
                self._change(_DURABLE, (item.position,))

    def write(self, connection: sqlite3.Connection) -> None:
        """All of it or nothing, on the disk itself if it has to be durable."""
        self._settle()
        self._stock.held = self._new
        # A commit in FULL mode carries the earlier ones of NORMAL mode to the disk, but only if it writes.
        connection.execute(f"PRAGMA synchronous = {'FULL' if self.durable else 'NORMAL'}")
        with connection:
            connection.execute("BEGIN")
            for statement, rows in self._statements:
                connection.executemany(statement, rows)

    def _add_event(self, entry: Entry[Event]) -> None:
        event = entry.event
        step, version, group = [getattr(event, name, None) for name in ("step", "version", "group")]
        body = _ENCODER.encode(event).decode()
        self._events.append((entry.id, entry.time, type(event).__name__, step, version, group, body))
        match event:
            case GroupReady(group=group, siblings=siblings) if siblings:
                self._change(_SPARE, (group, _ENCODER.encode(siblings).decode()))
            case Taken(step=step, groups=groups):
                self._change(MARK_TAKEN, *({"step": step, "group": group} for group in groups))
            case RolledBack(to_step=step):
                self._change(_UNDO, (step,))
            case _:
                pass

    def _add_kept(self, item: Keep) -> None:
        trajectory, packed = item.trajectory, pack(item.trajectory, self._texts)
        id, task, status = item.id, trajectory.task, trajectory.status
        self._bodies.append((id, packed.body))
        self._kept.append(
            (
                id,
                item.group,
                trajectory.sibling,
                task.id,
                task.domain,
                item.ended,
                status.value,
                trajectory.reward if status.valid else None,
                trajectory.reason,
                sum(packed.versions.values()),
                self._forget((item.group, trajectory.sibling)),
                _ENCODER.encode(packed.versions).decode(),
            )
        )

    def _forget(self, attempt: tuple[int, int]) -> int:
        """The attempt's progress is to go; how many tokens that was."""
        num_tokens = 0
        for held in (self._chunks, self._new):  # never on disk
            for chunk in held.pop(attempt, ()):
                num_tokens += len(chunk.ids)
        if attempt in self._noted:
            self._ended.append(attempt)
            num_tokens += self._noted.pop(attempt)
        return num_tokens

    def _change(self, statement: str, *rows: Any) -> None:
        self._settle()
        self._statements.append((statement, list(rows)))

    def _age(self) -> None:
        """What is new is held back no longer."""
        for attempt, chunks in self._new.items():
            self._chunks.setdefault(attempt, []).extend(chunks)
        self._new = {}

    def _settle(self) -> None:
        """Put the rows gathered so far among the statements."""
        chunks = [chunk for each in self._chunks.values() for chunk in each]
        for chunk in chunks:
            attempt = (chunk.group, chunk.sibling)
            self._noted[attempt] = self._noted.get(attempt, 0) + len(chunk.ids)
        rows = {
            _EVENT: self._events,
            _KEEP: self._kept,
            _STORE: self._bodies,
            _FORGET: self._ended,  # before the chunks: those of a next attempt stay
            _NOTE: [_chunk_row(chunk) for chunk in chunks],
            _SPAN: [(span.worker, span.doing, span.began, span.ended) for span in merge(self._spans)],
        }
        self._statements += [(statement, found) for statement, found in rows.items() if found]
        self._events, self._kept, self._bodies = [], [], []
        self._chunks, self._ended, self._spans = {}, [], []


def _chunk_row(chunk: Chunk) -> tuple[Any, ...]:
    about = (chunk.group, chunk.sibling, chunk.attempt, chunk.turn, chunk.context)
    return (*about, chunk.ids.tobytes(), chunk.logprobs.tobytes(), chunk.version)
