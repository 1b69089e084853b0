"""What every worker did, and the groups in flight, from the spans and events of the journal."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from roll.errors import ConfigError
from roll.journal.records import IDLE

DEFAULT_S = 120.0
"""Seconds of the window that is shown if none is chosen."""
_MAX_GROUPS = 500
Span = tuple[float, float, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeWindow:
    """A part of a run, and how many points it is drawn with."""

    start: float
    end: float
    points: int = 600

    def __post_init__(self) -> None:
        if self.end < self.start or not 10 <= self.points <= 5000:
            raise ConfigError("from, to, points: expected from <= to and 10 to 5000 points; change them")

    @property
    def point_s(self) -> float:
        """Seconds per point."""
        return (self.end - self.start) / self.points


def run_times(rows: sqlite3.Connection) -> tuple[float, float]:
    """Times of the first and the last record."""
    query = """SELECT (SELECT time FROM events ORDER BY id LIMIT 1),
        (SELECT time FROM events ORDER BY id DESC LIMIT 1), (SELECT MAX("end") FROM spans)"""
    first, *last = rows.execute(query).fetchone()
    return first or 0.0, max((time for time in last if time is not None), default=0.0)


def choose_window(rows: sqlite3.Connection, start: float | None, end: float | None, points: int) -> TimeWindow:
    """The window that was asked for, by default the end of the run."""
    first, last = run_times(rows)
    end = last if end is None else end
    return TimeWindow(start=max(first, end - DEFAULT_S) if start is None else start, end=end, points=points)


def describe_scheduler(rows: sqlite3.Connection, window: TimeWindow, slots: Any) -> dict[str, Any]:
    """The answer of `/scheduler`."""
    first, last = run_times(rows)
    activities: dict[str, int] = {}
    lanes = [_lane(rows, worker, window, activities) for worker in _workers(rows)]
    groups = list(_groups(rows, last))
    phases = [group["phase"] for group in groups]
    query = "SELECT version, time FROM versions WHERE time BETWEEN ? AND ? ORDER BY time LIMIT 2000"
    counts = {phase: phases.count(phase) for phase in ("sampling", "ready", "training")}
    return {
        "run": {"start": first, "end": last},
        "window": {"from": window.start, "to": window.end},
        "lanes": lanes,
        "activities": [*activities],
        "steps": list(_steps(rows, window)),
        "publications": [
            {"version": version, "time": time} for version, time in rows.execute(query, (window.start, window.end))
        ],
        "queues": {**counts, "slots": slots if isinstance(slots, int) else None},
        "groups": groups[:_MAX_GROUPS],
    }


def _workers(rows: sqlite3.Connection) -> list[str]:
    names = [row[0] for row in rows.execute("SELECT DISTINCT worker FROM spans")]
    order = {"trainer": 0, "generator": 1, "reward": 2}
    return sorted(names, key=lambda name: (order.get(_role(name), 3), _role(name), _rank(name)))


def _role(worker: str) -> str:
    return worker.rpartition("-")[0] or worker


def _rank(worker: str) -> int:
    rank = worker.rpartition("-")[2]
    return int(rank) if rank.isdecimal() else 0


def _lane(rows: sqlite3.Connection, worker: str, window: TimeWindow, activities: dict[str, int]) -> dict[str, Any]:
    query = (
        """SELECT start, "end", activity FROM spans WHERE worker = ? AND "end" >= ? AND start <= ? ORDER BY "end" """
    )
    spans: list[Span] = rows.execute(query, (worker, window.start, window.end)).fetchall()
    totals: dict[str, float] = {}
    for start, end, activity in spans:
        inside = min(end, window.end) - max(start, window.start)
        totals[activity] = totals.get(activity, 0.0) + max(0.0, inside)
    query = 'SELECT activity, "end" FROM spans WHERE worker = ? ORDER BY "end" DESC LIMIT 1'
    activity, since = rows.execute(query, (worker,)).fetchone()
    joined = join_short(spans, window.point_s)
    return {
        "worker": worker,
        "role": _role(worker),
        "spans": [[start, end, activities.setdefault(name, len(activities))] for start, end, name in joined],
        "now": {
            "activity": activity,
            "since": since,
            "waits_for": activity.removeprefix(IDLE) if activity.startswith(IDLE) else None,
            "known": False,
        },
        "totals": totals,
    }


def join_short(spans: Iterable[Span], point_s: float) -> list[Span]:
    """The spans, with those shorter than a point joined into the activity with the largest share of it."""
    result: list[Span] = []
    pending: list[Span] = []
    for span in spans:
        if pending and span[1] - pending[0][0] > point_s:
            result.append(_largest(pending))
            pending = []
        if span[1] - span[0] >= point_s:
            result.append(span)
        else:
            pending.append(span)
    return [*result, *([_largest(pending)] if pending else [])]


def _largest(spans: Sequence[Span]) -> Span:
    seconds: dict[str, float] = {}
    for start, end, activity in spans:
        seconds[activity] = seconds.get(activity, 0.0) + end - start
    return spans[0][0], spans[-1][1], max(seconds, key=lambda activity: seconds[activity])


def _steps(rows: sqlite3.Connection, window: TimeWindow) -> Iterator[dict[str, Any]]:
    query = """SELECT s.step, s.time, (SELECT MIN(time) FROM events AS p WHERE p.kind = 'WeightsPublished'
            AND p.step = s.step AND p.id > s.id) AS until,
        (SELECT COUNT(*) FROM groups WHERE groups.step = s.step)
        FROM events AS s WHERE s.kind = 'StepStarted' AND s.time <= ? AND COALESCE(until, ?) >= ?
        ORDER BY s.id DESC LIMIT 1000"""
    for step, start, end, groups in rows.execute(query, (window.end, window.end, window.start)).fetchall()[::-1]:
        yield {"step": step, "start": start, "end": end, "groups": groups}


def _groups(rows: sqlite3.Connection, now: float) -> Iterator[dict[str, Any]]:
    """Groups whose outcome is open, the oldest first."""
    query = f"""SELECT id, task, domain, birth, admitted, ready, step FROM groups WHERE outcome = 'waiting'
        ORDER BY id LIMIT {2 * _MAX_GROUPS}"""
    waiting = rows.execute(query).fetchall()
    tokens = _progress(rows)
    for id, task, domain, birth, admitted, ready, step in waiting:
        phase = "training" if step is not None else "ready" if ready is not None else "sampling"
        siblings = _siblings(rows, id, tokens)
        retries = "SELECT COUNT(*) FROM events WHERE kind = 'AttemptRetried' AND \"group\" = ?"
        yield {
            **{"group": id, "task": task, "domain": domain, "birth": birth, "admitted": admitted, "phase": phase},
            "age_s": max(0.0, now - admitted),
            "siblings": siblings,
            "retries": rows.execute(retries, (id,)).fetchone()[0],
        }


def _progress(rows: sqlite3.Connection) -> Mapping[tuple[int, int], int]:
    """Tokens of unfinished responses by group and sibling."""
    query = 'SELECT "group", sibling, SUM(LENGTH(ids)) / 4 FROM journal.progress GROUP BY 1, 2'
    return {(group, sibling): tokens for group, sibling, tokens in rows.execute(query)}


def _siblings(rows: sqlite3.Connection, group: int, tokens: Mapping[tuple[int, int], int]) -> list[dict[str, Any]]:
    query = 'SELECT sibling, id, status, tokens FROM samples WHERE "group" = ? ORDER BY sibling, id'
    siblings = {
        sibling: {"sibling": sibling, "phase": "ended", "tokens": count, "status": status, "id": id}
        for sibling, id, status, count in rows.execute(query, (group,))
    }
    for (owner, sibling), count in tokens.items():
        if owner == group:
            siblings[sibling] = {
                **{"sibling": sibling, "phase": "sampling", "tokens": count},
                **dict.fromkeys(("status", "id")),
            }
    return [siblings[sibling] for sibling in sorted(siblings)]
