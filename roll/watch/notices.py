"""Notices of a run: events about things that a person should look at, also of kinds that this release does not know."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from roll.journal.events import KINDS
from roll.tracking.notices.catalogue import CATALOGUE, NoticeType

_ERRORS = ("GroupFailed", "TaskQuarantined", "ControllerRestarted")
_WARNINGS = ("ProblemNoticed", "HackSuspected", "ReplayDiverged", "ProxyRequestRefused", "NodeAwaited")
INFO = (
    *("RolledBack", "GeneratorReplaced", "GeneratorJoined", "GeneratorLeft", "GeneratorRefused"),
    *("WorkerReplaced", "WorkerMoved", "AsyncRatioChanged"),
)
SHOWN = (*_ERRORS, *_WARNINGS, *INFO)
Ends = dict[tuple[Any, ...], dict[str, Any]]
_TEXTS = ("text", "message", "reason", "cause")


def list_notices(rows: sqlite3.Connection, *, before: int | None, limit: int) -> list[dict[str, Any]]:
    """The newest notices below an id."""
    where, values = _where(rows)
    query = f"SELECT id FROM events WHERE {where} AND id < ? ORDER BY id DESC LIMIT ?"
    ids = [row[0] for row in rows.execute(query, (*values, before or 2**62, limit))]
    ends = _ends(rows)
    return [describe_notice(event, ends) for event in read_events(rows, ids)]


def _ends(rows: sqlite3.Connection) -> Ends:
    """The ends of problems, by what they have in common with their beginning."""
    ends: Ends = {}
    ids = "SELECT id FROM events WHERE kind = 'ProblemEnded'"  # of the index, which may be behind the journal
    for (body,) in rows.execute(f"SELECT body FROM journal.events WHERE id IN ({ids}) ORDER BY id"):
        fields = decode_fields(body)
        ends[problem_of(fields, fields.get("since"))] = fields
    return ends


def problem_of(fields: Mapping[str, Any], since: Any) -> tuple[Any, ...]:
    """What the beginning of a problem has in common with its end."""
    return fields.get("kind"), fields.get("metric"), fields.get("domain", ""), since


def read_events(rows: sqlite3.Connection, ids: list[int]) -> list[dict[str, Any]]:
    """Whole events of the journal as plain values, in the order of `ids`."""
    marks = ", ".join("?" * len(ids))
    query = f'SELECT id, time, kind, step, "group", body FROM journal.events WHERE id IN ({marks})'
    events = {
        id: {"id": id, "time": time, "kind": kind, "step": step, "group": group, "fields": decode_fields(body)}
        for id, time, kind, step, group, body in rows.execute(query, ids)
    }
    return [events[id] for id in ids if id in events]


def decode_fields(body: str) -> dict[str, Any]:
    """The fields of an event as plain values."""
    fields = msgspec.json.decode(body)
    return cast(dict[str, Any], fields) if isinstance(fields, dict) else {"value": fields}


def describe_notice(event: Mapping[str, Any], ends: Ends) -> dict[str, Any]:
    """An event as an entry of `/notices`."""
    fields, kind = event["fields"], event["kind"]
    end = ends.get(problem_of(fields, fields.get("step"))) if kind == "ProblemNoticed" else None
    attempts = fields.get("attempts")
    return {
        "id": event["id"],
        "time": event["time"],
        "step": event["step"] if event["step"] is not None else fields.get("step"),
        "kind": kind,
        "title": _title(kind, fields),
        "level": "error" if kind in _ERRORS else "info" if kind in INFO or end else "warning",
        "text": text_of(fields),
        "domain": fields.get("domain") or None,
        "attempts": attempts if isinstance(attempts, list) else [],
        "ended": None if end is None else {"step": end.get("step"), "text": text_of(end)},
        "fields": fields,
    }


def _title(kind: str, fields: Mapping[str, Any]) -> str:
    """What was noticed, in words: the problem, or else the kind of the event."""
    problem = str(fields.get("kind")) if kind == "ProblemNoticed" else ""
    entry = cast(Mapping[str, NoticeType], CATALOGUE).get(problem)
    return re.sub("(?<=[a-z])(?=[A-Z])", " ", kind).lower() if entry is None else entry.title


def text_of(fields: Mapping[str, Any]) -> str:
    """An event in one line: its text or reason, else all of its fields."""
    text = next((str(fields[name]) for name in _TEXTS if fields.get(name)), "")
    where = next((str(fields[name]) for name in ("worker", "task", "generator") if fields.get(name) is not None), "")
    if text:
        return f"{where}: {text}" if where else text
    return ", ".join(f"{name} {value}" for name, value in fields.items() if isinstance(value, str | int | float))


def _where(rows: sqlite3.Connection) -> tuple[str, tuple[str, ...]]:
    """A condition on the kind of an event: a known notice, or a kind that this release does not know."""
    kinds = [row[0] for row in rows.execute("SELECT DISTINCT kind FROM events")]
    shown = [kind for kind in kinds if kind in SHOWN or kind not in KINDS]
    return f"kind IN ({', '.join('?' * len(shown))})", tuple(shown)
