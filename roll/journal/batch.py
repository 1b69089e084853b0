"""One transaction of the journal: many items, written with few statements, in the order they were given."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from roll.journal.events import CheckpointSaved, Event, GroupReady, RolledBack, StepStarted, TokensGenerated
from roll.journal.packing import TaskTexts, pack, pack_values
from roll.journal.records import ActivitySpan, Chunk, JournalEntry, TokenValues, merge
from roll.types import Trajectory, record

_INSERT_EVENT = "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?)"
_INSERT_TRAJECTORY = """INSERT INTO trajectories
    (id, "group", sibling, task, domain, ended, status, reward, reason, tokens, progress_tokens, versions)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
_INSERT_BODY = "INSERT INTO bodies VALUES (?, ?)"
_INSERT_PROGRESS = """INSERT INTO progress ("group", sibling, attempt, turn, context, ids, logprobs, version)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?)"""
_INSERT_TOKEN_VALUES = """INSERT INTO token_values (step, "group", sibling, advantages, logprobs)
    VALUES (?, ?, ?, ?, ?)"""
_DELETE_PROGRESS = 'DELETE FROM progress WHERE "group" = ? AND sibling = ?'
_INSERT_SPAN = 'INSERT INTO spans (worker, activity, start, "end") VALUES (?, ?, ?, ?)'
INSERT_STEP_GROUP = """INSERT INTO step_groups (step, "group", attempts)
    SELECT :step, :group, json_group_array(id) FROM (
        SELECT MAX(id) AS id FROM trajectories
        WHERE "group" = :group AND status IN ('finished', 'truncated') AND NOT surplus GROUP BY sibling)"""
_MARK_SURPLUS = """UPDATE trajectories SET surplus = sibling NOT IN (SELECT value FROM json_each(:siblings))
    WHERE "group" = :group"""
"""Sets it for all siblings: a resumed run may choose others than the run before it."""
_OF_SAVED_STEPS = """EXISTS (SELECT 1 FROM step_groups
    WHERE step_groups."group" = progress."group" AND step <= :step AND NOT rolled_back)"""
"""Progress that surplus siblings left behind. A rollback may continue it until a checkpoint contains the step."""
_COUNT_PROGRESS = """INSERT INTO deleted_progress (tokens)
    SELECT SUM(LENGTH(ids)) / 4 FROM progress WHERE {0} HAVING COUNT(*)"""
_DELETE_PROGRESS_WHERE = "DELETE FROM progress WHERE {0}"
_ROLL_BACK = "UPDATE step_groups SET rolled_back = 1 WHERE step > ?"
_TRAINED = """step < :step AND stored AND NOT rolled_back
    AND "group" NOT IN (SELECT "group" FROM step_groups WHERE step >= :step AND NOT rolled_back)"""
"""A group that is used in several steps stays until the last of them."""
_FAILED = """stored AND status NOT IN ('finished', 'truncated')
    AND "group" < (SELECT MIN("group") FROM step_groups WHERE step >= :step AND NOT rolled_back)"""
_OF_PRUNED = f'"group" IN (SELECT "group" FROM step_groups WHERE {_TRAINED})'
PRUNE = (
    # An index of the rows left to prune serves each, so that it costs no more in a long run than in a short one.
    *(each.format(_OF_PRUNED) for each in (_COUNT_PROGRESS, _DELETE_PROGRESS_WHERE)),
    f"DELETE FROM bodies WHERE id IN (SELECT value FROM step_groups, json_each(attempts) WHERE {_TRAINED})",
    f"UPDATE step_groups SET stored = 0 WHERE {_TRAINED}",
    "DELETE FROM token_values WHERE step < :step",
    f"DELETE FROM bodies WHERE id IN (SELECT id FROM trajectories WHERE {_FAILED})",
    f"UPDATE trajectories SET stored = 0 WHERE {_FAILED}",
)
_ENCODER = msgspec.json.Encoder()
_SET_DURABLE = "INSERT OR REPLACE INTO durable VALUES (0, ?)"


@record
class StoreTrajectory:
    """Stores a trajectory, which is also the event of its end."""

    id: int
    group: int
    trajectory: Trajectory
    ended: float
    """Seconds since 1970."""


@dataclass(frozen=True, slots=True)
class PruneBodies:
    """Deletes tokens that were trained on before this step."""

    before_step: int


@dataclass(frozen=True, slots=True)
class SyncToDisk:
    """Makes all earlier items survive a power cut."""

    position: int


@dataclass(frozen=True, slots=True)
class FlushProgress:
    """Writes all earlier progress in this transaction instead of deferring it."""


_Change: TypeAlias = PruneBodies | SyncToDisk | FlushProgress
WriteItem: TypeAlias = JournalEntry[Event] | StoreTrajectory | TokenValues | Chunk | ActivitySpan | _Change


class WriterState:
    """Progress on disk and deferred progress, carried over from batch to batch."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        rows = connection.execute('SELECT "group", sibling, SUM(LENGTH(ids)) / 4 FROM progress GROUP BY 1, 2')
        self.num_progress = {(int(group), int(sibling)): int(tokens) for group, sibling, tokens in rows.fetchall()}
        """Tokens of progress on disk, by group and sibling."""
        self.deferred: dict[tuple[int, int], list[Chunk]] = {}
        """Progress by group and sibling that the next batch writes, if it is still needed then."""


class WriteBatch:
    """Items of one transaction. Rows of a table are inserted together; a statement that changes rows comes after them.

    Progress is deferred to the next batch: most of it belongs to attempts that end by then, and is never written.
    """

    def __init__(self, state: WriterState) -> None:
        self._state, self._num_progress = state, state.num_progress
        self._events: list[tuple[Any, ...]] = []
        self._trajectories: list[tuple[Any, ...]] = []
        self._bodies: list[tuple[int, bytes]] = []
        self._token_values: list[TokenValues] = []
        self._chunks, self._new = state.deferred, dict[tuple[int, int], list[Chunk]]()
        self._ended: list[tuple[int, int]] = []
        self._spans: list[ActivitySpan] = []
        self._statements: list[tuple[str, list[Any]]] = []
        self._texts = TaskTexts()
        self.durable = False

    def add(self, item: WriteItem) -> None:
        """Append the item."""
        match item:
            case JournalEntry():
                self._add_event(item)
            case StoreTrajectory():
                self._add_trajectory(item)
            case TokenValues():
                self._token_values.append(item)
            case Chunk():
                self._new.setdefault((item.group, item.sibling), []).append(item)
            case ActivitySpan():
                self._spans.append(item)
            case PruneBodies():
                self._include_new()
                for statement in PRUNE:
                    self._change(statement, {"step": item.before_step})
            case FlushProgress():
                self._include_new()
            case SyncToDisk():
                self.durable = True
                self._include_new()
                self._change(_SET_DURABLE, (item.position,))

    def write(self, connection: sqlite3.Connection) -> None:
        """Commit all items or none, synced to disk if the batch has to be durable."""
        self._insert_rows()
        self._state.deferred = self._new
        # A commit in FULL mode also syncs the earlier commits of NORMAL mode, but only if it writes.
        connection.execute(f"PRAGMA synchronous = {'FULL' if self.durable else 'NORMAL'}")
        with connection:
            connection.execute("BEGIN")
            for statement, rows in self._statements:
                connection.executemany(statement, rows)

    def _add_event(self, entry: JournalEntry[Event]) -> None:
        event = entry.event
        step, version, group = [getattr(event, name, None) for name in ("step", "version", "group")]
        body = _to_json(event)
        self._events.append((entry.id, entry.time, type(event).__name__, step, version, group, body))
        match event:
            case GroupReady(group=group, siblings=siblings) if siblings:
                self._change(_MARK_SURPLUS, {"group": group, "siblings": _ENCODER.encode(siblings).decode()})
            case StepStarted(step=step, groups=groups):
                self._change(INSERT_STEP_GROUP, *({"step": step, "group": group} for group in groups))
            case CheckpointSaved(step=step):
                self._include_new()
                for statement in (_COUNT_PROGRESS, _DELETE_PROGRESS_WHERE):
                    self._change(statement.format(_OF_SAVED_STEPS), {"step": step})
            case RolledBack(to_step=step):
                self._change(_ROLL_BACK, (step,))
            case TokensGenerated():
                self._include_new()  # no kill leaves tokens counted that are not on disk
            case _:
                pass

    def _add_trajectory(self, item: StoreTrajectory) -> None:
        trajectory, packed = item.trajectory, pack(item.trajectory, self._texts)
        id, task, status = item.id, trajectory.task, trajectory.status
        self._bodies.append((id, packed.body))
        self._trajectories.append(
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
                self._drop_progress((item.group, trajectory.sibling)),
                _ENCODER.encode(packed.versions).decode(),
            )
        )

    def _drop_progress(self, attempt: tuple[int, int]) -> int:
        """Drop the attempt's progress; returns its number of tokens."""
        num_tokens = 0
        for chunks in (self._chunks, self._new):  # never on disk
            for chunk in chunks.pop(attempt, ()):
                num_tokens += len(chunk.ids)
        if attempt in self._num_progress:
            self._ended.append(attempt)
            num_tokens += self._num_progress.pop(attempt)
        return num_tokens

    def _change(self, statement: str, *rows: Any) -> None:
        self._insert_rows()
        self._statements.append((statement, list(rows)))

    def _include_new(self) -> None:
        """Write the new progress with this batch instead of deferring it."""
        for attempt, chunks in self._new.items():
            self._chunks.setdefault(attempt, []).extend(chunks)
        self._new = {}

    def _insert_rows(self) -> None:
        """Append statements that insert the rows collected so far."""
        chunks = [chunk for each in self._chunks.values() for chunk in each]
        for chunk in chunks:
            attempt = (chunk.group, chunk.sibling)
            self._num_progress[attempt] = self._num_progress.get(attempt, 0) + len(chunk.ids)
        inserts = {
            _INSERT_EVENT: self._events,
            _INSERT_TRAJECTORY: self._trajectories,
            _INSERT_BODY: self._bodies,
            _INSERT_TOKEN_VALUES: [_values_row(values) for values in self._token_values],
            _DELETE_PROGRESS: self._ended,  # before the chunks: those of the next attempt stay
            _INSERT_PROGRESS: [_chunk_row(chunk) for chunk in chunks],
            _INSERT_SPAN: [(span.worker, span.activity, span.start, span.end) for span in merge(self._spans)],
        }
        self._statements += [(statement, rows) for statement, rows in inserts.items() if rows]
        self._events, self._trajectories, self._bodies, self._token_values = [], [], [], []
        self._chunks, self._ended, self._spans = {}, [], []


def _values_row(values: TokenValues) -> tuple[Any, ...]:
    logprobs = values.trainer_logprobs
    packed = (pack_values(values.advantages), None if logprobs is None else pack_values(logprobs))
    return (values.step, values.group, values.sibling, *packed)


def _chunk_row(chunk: Chunk) -> tuple[Any, ...]:
    key = (chunk.group, chunk.sibling, chunk.attempt, chunk.turn, chunk.context)
    return (*key, chunk.ids.tobytes(), chunk.logprobs.tobytes(), chunk.version)


def _to_json(event: Event) -> str:
    """An event as JSON; halves of surrogate pairs, which a reason may quote, become question marks."""
    try:
        return _ENCODER.encode(event).decode()
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(event), ensure_ascii=False).encode("utf-8", "replace").decode()
