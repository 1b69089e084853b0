"""Publications of the weights, newest first."""

from __future__ import annotations

import sqlite3
from typing import Any

from roll.watch.notices import decode_fields

CANARY = "canary"
"""Part of a publication in which generators and trainer scored the same text."""


def list_versions(rows: sqlite3.Connection, *, before: int | None, limit: int) -> dict[str, Any]:
    """One page of the versions below a number."""
    query = "SELECT version, step, time, event, void FROM versions WHERE version < ? ORDER BY version DESC LIMIT ?"
    selected = rows.execute(query, (2**62 if before is None else before, limit + 1)).fetchall()
    page = selected[:limit]
    resumed, refused = _resumed(rows, [row[0] for row in page]), refused_updates(rows)
    ranges = rows.execute("SELECT oldest, newest, COUNT(*) FROM samples WHERE oldest NOT NULL GROUP BY 1, 2").fetchall()
    versions: list[dict[str, Any]] = []
    for version, step, time, event, void in page:
        requests, tokens = resumed.get(version, (0, 0))
        versions.append(
            {
                **{"version": version, "step": step, "time": time, "id": event, "void": bool(void)},
                **_publication(rows, event),
                "resumed_requests": requests,
                "prefilled_tokens": tokens,
                "refused_updates": refused.get(step, 0),
                "attempts": sum(count for oldest, newest, count in ranges if oldest <= version <= newest),
            }
        )
    return {"next": page[-1][0] if len(selected) > limit else None, "versions": versions}


def _publication(rows: sqlite3.Connection, event: int) -> dict[str, Any]:
    body = rows.execute("SELECT body FROM journal.events WHERE id = ?", (event,)).fetchone()
    fields = decode_fields(body[0]) if body is not None else {}
    seconds = fields.get("seconds", {})
    return {"digest": fields.get("digest"), "seconds": seconds, "canary": CANARY in seconds}


def refused_updates(rows: sqlite3.Connection) -> dict[int, int]:
    """Updates that were refused as not finite, by step."""
    query = """SELECT events.step, COUNT(*) FROM events JOIN journal.events AS e USING (id)
        WHERE events.kind = 'WeightsUpdated' AND json_extract(e.body, '$.refused') GROUP BY 1"""
    return dict(rows.execute(query).fetchall())


def _resumed(rows: sqlite3.Connection, versions: list[int]) -> dict[int, tuple[int, int]]:
    """Replies and tokens that continued with each version."""
    if not versions:
        return {}
    query = """SELECT events.version, SUM(json_extract(e.body, '$.num_requests')),
            SUM(json_extract(e.body, '$.num_tokens'))
        FROM events JOIN journal.events AS e USING (id)
        WHERE events.kind = 'RequestsResumed' AND events.version BETWEEN ? AND ? GROUP BY 1"""
    counts = rows.execute(query, (min(versions), max(versions)))
    return {version: (requests or 0, tokens or 0) for version, requests, tokens in counts}
