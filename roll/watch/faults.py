"""Failures of a run by cause, and what was replaced, restarted, refused or rolled back."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from roll.watch.notices import read_events, text_of
from roll.watch.versions import refused_updates

_TITLES = {
    "GeneratorReplaced": "generator replaced",
    "GeneratorJoined": "generator joined",
    "GeneratorLeft": "generator left",
    "GeneratorRefused": "generator refused",
    "WorkerReplaced": "worker replaced",
    "WorkerMoved": "worker moved to another node",
    "NodeAwaited": "replacement waited for a node",
    "ControllerRestarted": "controller restarted",
    "RolledBack": "rolled back",
    "TaskQuarantined": "task not drawn any more",
    "ReplayDiverged": "environment differed after a restart",
    "ProxyRequestRefused": "request of an agent refused",
    "GroupFailed": "group abandoned",
}
_COUNTED = (
    "GeneratorReplaced",
    "WorkerReplaced",
    "ControllerRestarted",
    "RolledBack",
    "TaskQuarantined",
    "GroupFailed",
)
_MAX_EVENTS, _MAX_CAUSES = 500, 200
_QUOTED = re.compile(r"'[^']{0,400}'|\"[^\"]{0,400}\"")
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+|\d+(\.\d+)*")
_LONGEST = 300


@dataclass(slots=True)
class _Cause:
    """Failures with the same reason, but for numbers and quoted parts."""

    kind: str
    cause: str
    first: Mapping[str, Any]
    last: Mapping[str, Any]
    count: int = 0
    domains: dict[str, int] = field(default_factory=dict[str, int])

    def to_json(self) -> dict[str, Any]:
        names = ("kind", "cause", "count", "domains", "first", "last")
        return {name: getattr(self, name) for name in names}


def describe_faults(rows: sqlite3.Connection) -> dict[str, Any]:
    """The answer of `/faults`."""
    causes: dict[tuple[str, str], _Cause] = {}
    total = 0
    for failure in _failures(rows):
        total += 1
        key = failure["kind"], generalise(failure["text"])
        cause = causes.setdefault(key, _Cause(*key, failure, failure))
        cause.count += 1
        cause.last = failure
        cause.domains[failure["domain"]] = cause.domains.get(failure["domain"], 0) + 1
    by_count = sorted(causes.values(), key=lambda cause: -cause.count)[:_MAX_CAUSES]
    counts = {kind: _count(rows, kind) for kind in _COUNTED}
    return {
        "total": total,
        "causes": [cause.to_json() for cause in by_count],
        "events": _events(rows),
        "counts": {**counts, "refused": sum(refused_updates(rows).values())},
        "rates": list(_rates(rows)),
    }


def generalise(reason: str) -> str:
    """A reason with `#` for numbers and `'...'` for quoted parts, so that failures of one kind are equal."""
    return _ADDRESS.sub("#", _QUOTED.sub("'...'", reason))[:_LONGEST]


def _failures(rows: sqlite3.Connection) -> Iterator[dict[str, Any]]:
    """Failed attempts and retries, in order."""
    query = """SELECT id, ended, status, reason, "group", sibling, domain, step FROM samples
        WHERE status NOT IN ('finished', 'truncated', 'aborted', 'stale', 'filtered') ORDER BY id"""
    for id, time, status, reason, group, sibling, domain, step in rows.execute(query):
        yield {
            **{"id": id, "time": time, "kind": status, "text": reason, "sample": id, "group": group},
            **{"sibling": sibling, "domain": domain, "step": step if step is not None else _step_at(rows, id)},
        }
    retries = """SELECT e.id, e.time, json_extract(e.body, '$.status'), json_extract(e.body, '$.reason'), e."group",
        json_extract(e.body, '$.sibling'), COALESCE(groups.domain, '') FROM events JOIN journal.events AS e USING (id)
        LEFT JOIN groups ON groups.id = e."group" WHERE events.kind = 'AttemptRetried' ORDER BY 1"""
    for id, time, status, reason, group, sibling, domain in rows.execute(retries):
        if not _recorded(rows, group, sibling, id):
            yield {
                **{"id": id, "time": time, "kind": status, "text": reason, "sample": None, "group": group},
                **{"sibling": sibling, "domain": domain, "step": _step_at(rows, id)},
            }


def _recorded(rows: sqlite3.Connection, group: int, sibling: int, id: int) -> bool:
    """Whether the attempt that is tried again is one of the stored ones."""
    query = """SELECT 1 FROM samples WHERE "group" = ? AND sibling = ? AND id < ?
        AND status NOT IN ('finished', 'truncated') LIMIT 1"""
    return rows.execute(query, (group, sibling, id)).fetchone() is not None


def _step_at(rows: sqlite3.Connection, id: int) -> int | None:
    """The newest step that had started by then."""
    query = "SELECT step FROM events WHERE kind = 'StepStarted' AND id < ? ORDER BY id DESC LIMIT 1"
    row = rows.execute(query, (id,)).fetchone()
    return None if row is None else row[0]


def _events(rows: sqlite3.Connection) -> list[dict[str, Any]]:
    kinds = ", ".join("?" * len(_TITLES))
    query = f"""SELECT id FROM events WHERE kind IN ({kinds}) OR (kind = 'WeightsUpdated' AND id IN (SELECT e.id
        FROM journal.events AS e WHERE e.kind = 'WeightsUpdated' AND json_extract(e.body, '$.refused')))
        ORDER BY id DESC LIMIT {_MAX_EVENTS}"""
    events = read_events(rows, [row[0] for row in rows.execute(query, [*_TITLES])])
    return [
        {
            **{name: event[name] for name in ("id", "time", "kind", "step", "fields")},
            "title": _TITLES.get(event["kind"], "update refused as not finite"),
            "text": text_of(event["fields"]),
        }
        for event in events
    ]


def _count(rows: sqlite3.Connection, kind: str) -> int:
    return int(rows.execute("SELECT COUNT(*) FROM events WHERE kind = ?", (kind,)).fetchone()[0])


def _rates(rows: sqlite3.Connection) -> Iterator[dict[str, Any]]:
    query = """SELECT domain, status, COUNT(*), SUM(COUNT(*)) OVER (PARTITION BY domain) FROM samples
        GROUP BY domain, status ORDER BY domain, 3 DESC"""
    for domain, status, count, total in rows.execute(query):
        if status != "finished":
            yield {"domain": domain, "status": status, "count": count, "of": total}
