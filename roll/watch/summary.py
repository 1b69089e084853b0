"""What the first view of a run shows of its journal: counts by domain, notices, and the end of the run.

An update reads only the rows that were appended since the last one, and writes nothing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from roll.errors import JournalDamaged
from roll.journal.database import connect, report_damage
from roll.journal.events import KINDS, RunEnded
from roll.watch.notices import INFO, SHOWN, Ends, decode_fields, describe_notice, problem_of

_READ = (*SHOWN, "ProblemEnded", "RunStarted", "RunEnded", "RolledBack", "WeightsUpdated")
_SKIPPED = tuple(kind for kind in KINDS if kind not in _READ)
"""Kinds of which the number is enough; kinds of later releases are read, and shown as notices."""
_EVENTS = f"""SELECT id, time, kind, step, "group", body FROM events
    WHERE id > ? AND id <= ? AND kind NOT IN ({", ".join("?" * len(_SKIPPED))}) ORDER BY id"""
_ATTEMPTS = """SELECT domain, status, COUNT(*), SUM(tokens), TOTAL(reward), COUNT(reward) FROM trajectories
    WHERE id > ? AND id <= ? GROUP BY domain, status"""
_TRAINED = """SELECT step, SUM(json_array_length(attempts)) FROM step_groups
    WHERE id > ? AND id <= ? AND NOT rolled_back GROUP BY step"""
_LAST = "SELECT MAX(COALESCE((SELECT MAX(id) FROM events), 0), COALESCE((SELECT MAX(id) FROM trajectories), 0))"
_MOST_NOTICES = 20
_VALID = ("finished", "truncated")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """The newest end of a run."""

    step: int
    reason: str
    time: float


@dataclass(slots=True)
class DomainCounts:
    """Attempts of one domain that have ended."""

    attempts: int = 0
    valid: int = 0
    failed: int = 0
    truncated: int = 0
    tokens: int = 0
    rewards: float = 0.0
    rewarded: int = 0

    def add(self, status: str, attempts: int, tokens: int, rewards: float, rewarded: int) -> None:
        self.attempts += attempts
        self.tokens += tokens
        self.rewards += rewards
        self.rewarded += rewarded
        self.valid += attempts if status in _VALID else 0
        self.truncated += attempts if status == "truncated" else 0
        self.failed += attempts if status.endswith("_failed") else 0


class JournalSummary:
    """Counts over a journal as of the last update; for one thread at a time."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._first: tuple[float] | None = None
        """Time of the first event."""
        self._last_step_group = 0
        self._notices: list[Mapping[str, Any]] = []
        self._num_shown = 0
        self._ends: Ends = {}
        self._untrained: dict[int, int] = {}
        """Attempts of each step none of whose updates was applied."""
        self._trained: dict[int, int] = {}
        """Attempts of the other steps."""
        self.position = 0
        """Id of the last row that has been read."""
        self.domains: dict[str, DomainCounts] = {}
        self.num_trained = 0
        self.last_notice = 0
        """Id of the newest event that changed the notices."""
        self.end: RunEnd | None = None

    @property
    def num_failures(self) -> int:
        """Attempts that failed."""
        return sum(counts.failed for counts in self.domains.values())

    @property
    def num_notices(self) -> int:
        """Notices that are warnings or errors; a problem that has ended is none any more."""
        return self._num_shown - len(self._ends)

    def notices(self) -> list[dict[str, Any]]:
        """The newest notices, the newest first."""
        return [describe_notice(event, self._ends) for event in reversed(self._notices)]

    def update(self, journal: Path) -> None:
        """Read what was appended; a journal that has begun again is read from its start."""
        try:
            self._update(journal)
        except JournalDamaged:
            self._reset()
            raise

    def _update(self, journal: Path) -> None:
        with closing(connect(journal, write=False)) as rows, report_damage(journal):
            rows.execute("BEGIN")
            first = rows.execute("SELECT time FROM events ORDER BY id LIMIT 1").fetchone()
            (last,) = rows.execute(_LAST).fetchone()
            if first != self._first or last < self.position or self._is_rolled_back(rows):
                self._reset()
                self._first = first
            self._read(rows, last)

    def _is_rolled_back(self, rows: sqlite3.Connection) -> bool:
        """Whether steps that are counted were undone since."""
        query = "SELECT 1 FROM events WHERE kind = 'RolledBack' AND id > ? LIMIT 1"
        return bool(self.position) and rows.execute(query, (self.position,)).fetchone() is not None

    def _read(self, rows: sqlite3.Connection, last: int) -> None:
        span = self.position, last
        (last_step_group,) = rows.execute("SELECT COALESCE(MAX(id), 0) FROM step_groups").fetchone()
        attempts = rows.execute(_ATTEMPTS, span).fetchall()
        trained = rows.execute(_TRAINED, (self._last_step_group, last_step_group)).fetchall()
        events = rows.execute(_EVENTS, (*span, *_SKIPPED)).fetchall()
        for domain, *counts in attempts:
            self.domains.setdefault(domain, DomainCounts()).add(*counts)
        for step, number in trained:
            self._untrained[step] = self._untrained.get(step, 0) + number
        for id, time, kind, step, group, body in events:
            fields = decode_fields(body)
            self._follow_steps(kind, step, fields)
            if kind == "RunEnded":
                event = msgspec.convert(fields, RunEnded, strict=False)
                self.end = RunEnd(step=event.step, reason=event.reason, time=time)
            elif kind == "RunStarted":
                self.end = None
            elif kind != "WeightsUpdated":
                event = {"id": id, "time": time, "kind": kind, "step": step, "group": group, "fields": fields}
                self._add_notice(event)
        self.position, self._last_step_group = last, last_step_group

    def _follow_steps(self, kind: str, step: int, fields: Mapping[str, Any]) -> None:
        """Attempts count as trained once an update of their step is applied, and until it is rolled back."""
        if kind == "WeightsUpdated" and not fields.get("refused"):
            self._trained[step] = self._trained.get(step, 0) + (number := self._untrained.pop(step, 0))
            self.num_trained += number
        elif kind == "RolledBack":
            for undone in [each for each in self._trained if each > fields["to_step"]]:
                self._untrained[undone] = number = self._trained.pop(undone)
                self.num_trained -= number

    def _add_notice(self, event: Mapping[str, Any]) -> None:
        self.last_notice = event["id"]
        if event["kind"] == "ProblemEnded":
            self._ends[problem_of(event["fields"], event["fields"].get("since"))] = event["fields"]
            return
        self._notices = [*self._notices, event][-_MOST_NOTICES:]
        self._num_shown += event["kind"] not in INFO
