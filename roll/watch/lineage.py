"""The life of one attempt, from its admission to the version that was trained on it, in the order of time."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from roll.types import Trajectory
from roll.watch.notices import decode_fields

_MARGIN_S = 0.05
"""Workers switch their activity a moment before or after the times in an attempt."""
_MAX = 500
"""Most entries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageEntry:
    """One thing that happened to an attempt or to its group."""

    time: float
    kind: str
    title: str
    text: str
    id: int | None = None
    fields: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """The entry as plain values."""
        names = ("time", "id", "kind", "title", "text", "fields")
        return {name: getattr(self, name) for name in names}


def trace(rows: sqlite3.Connection, sample: Mapping[str, Any], body: Trajectory | None) -> list[dict[str, Any]]:
    """The entries of an attempt, oldest first."""
    entries = [
        *_group_entries(rows, sample),
        *_own_entries(rows, sample, body),
        *_step_entries(rows, sample),
        *_rollbacks(rows, sample),
    ]
    return [entry.to_json() for entry in sorted(entries, key=lambda entry: entry.time)[:_MAX]]


Fields = Mapping[str, Any]
_TITLES: dict[str, tuple[str, Callable[[Fields], str]]] = {
    "GroupAdmitted": ("admitted", lambda f: f"task {f['task']} of {f['domain']}, at version {f['birth']}"),
    "AttemptRetried": ("retried", lambda f: f"sibling {f['sibling']}: {f['status']}: {f['reason']}"),
    "GroupReady": ("group complete", lambda f: _rewards(f)),
    "GroupFailed": ("group abandoned", lambda f: f["reason"]),
    "GroupFiltered": ("group filtered, not trained", lambda f: f"{f['reason']}; {_rewards(f)}"),
    "GroupStale": ("group too old, not trained", lambda f: f["reason"]),
    "ReplayDiverged": ("environment differed after a restart", lambda f: f"from turn {f['turn'] + 1} on"),
}


def _rewards(fields: Fields) -> str:
    rewards = fields.get("rewards") or ()
    return "rewards " + ", ".join(f"{reward:g}" for reward in rewards) if rewards else "all siblings are valid"


def _group_entries(rows: sqlite3.Connection, sample: Mapping[str, Any]) -> Iterator[LineageEntry]:
    ids = [row[0] for row in rows.execute('SELECT id FROM events WHERE "group" = ? ORDER BY id', (sample["group"],))]
    for id, time, kind, fields in _events(rows, ids):
        if fields.get("sibling", sample["sibling"]) == sample["sibling"]:
            title, describe = _TITLES.get(kind, (kind, lambda _: ""))
            yield LineageEntry(time=time, id=id, kind=kind, title=title, text=describe(fields), fields=fields)


def _events(rows: sqlite3.Connection, ids: list[int]) -> Iterator[tuple[int, float, str, dict[str, Any]]]:
    query = f"SELECT id, time, kind, body FROM journal.events WHERE id IN ({', '.join('?' * len(ids))}) ORDER BY id"
    for id, time, kind, body in rows.execute(query, ids):
        yield id, time, kind, decode_fields(body)


def _own_entries(
    rows: sqlite3.Connection, sample: Mapping[str, Any], body: Trajectory | None
) -> Iterator[LineageEntry]:
    ended = sample["ended"]
    turns = () if body is None else body.turns
    now = ended - sum(turn.generated_s + turn.waited_s for turn in turns)
    for number, turn in enumerate(turns, 1):
        start, now = now, now + turn.generated_s
        versions = sorted({int(version) for version in turn.versions})
        text = f"{len(turn.sampled)} tokens in {turn.generated_s:.3g} s ({turn.finish})"
        text += f", queued {turn.queued_s:.3g} s" if turn.queued_s >= 0.01 else ""
        text += f", by version {', '.join(map(str, versions))}" if versions else ""
        text += _workers(rows, "generator", "generate", (start + turn.queued_s, now))
        yield LineageEntry(time=min(now, ended), kind="Turn", title=f"turn {number} sampled", text=text)
        now += turn.waited_s
    reward = sample["reward"]
    result = f"reward {reward:g}" if reward is not None else f"no reward: {sample['reason'] or sample['status']}"
    scored = _workers(rows, "reward", "score", (ended, ended)) if body is not None and body.score is not None else ""
    title = f"ended: {sample['status']}"
    yield LineageEntry(time=ended, id=sample["id"], kind="TrajectoryEnded", title=title, text=result + scored)


def _workers(rows: sqlite3.Connection, role: str, activity: str, times: tuple[float, float]) -> str:
    """The workers of a role that were busy between two times: the journal does not say which of them it was."""
    query = """SELECT DISTINCT worker FROM spans WHERE "end" >= ? AND start <= ? AND activity = ? AND worker LIKE ?
        ORDER BY worker LIMIT 20"""
    low, high = times[0] - _MARGIN_S, times[1] + _MARGIN_S
    workers = [row[0] for row in rows.execute(query, (low, high, activity, f"{role}-%"))]
    if not workers:
        return ""
    return f", on {workers[0]}" if len(workers) == 1 else f", on one of {', '.join(workers)}"


def _step_entries(rows: sqlite3.Connection, sample: Mapping[str, Any]) -> Iterator[LineageEntry]:
    step = sample["step"]
    if step is None:
        return
    kinds = ("StepStarted", "AdvantagesAssigned", "WeightsUpdated", "WeightsPublished")
    query = f"SELECT id FROM events WHERE step = ? AND id > ? AND kind IN ({', '.join('?' * len(kinds))}) ORDER BY id"
    ids = [row[0] for row in rows.execute(query, (step, sample["id"], *kinds))]
    for id, time, kind, fields in _events(rows, ids):
        entry = _step_entry(kind, fields, sample)
        if entry is not None:
            title, text = entry
            shown = {} if kind == "AdvantagesAssigned" else fields
            yield LineageEntry(time=time, id=id, kind=kind, title=title, text=text, fields=shown)


def _step_entry(kind: str, fields: Fields, sample: Mapping[str, Any]) -> tuple[str, str] | None:
    """Title and text of an event of the step that trained on the attempt; None if it does not concern it."""
    match kind:
        case "StepStarted":
            used = sample["group"] in fields["groups"]
            return (f"trained in step {fields['step']}", f"with {len(fields['groups'])} groups") if used else None
        case "AdvantagesAssigned":
            group = fields["advantages"].get(str(sample["group"]), {})
            mean = group.get(str(sample["sibling"]))
            return None if mean is None else ("advantage", f"mean over its tokens {mean:+.3g}")
        case "WeightsUpdated":
            return ("update refused", "it was not finite") if fields["refused"] else ("update applied", "")
        case _:
            return f"published as version {fields['version']}", f"digest {fields['digest']}"


def _rollbacks(rows: sqlite3.Connection, sample: Mapping[str, Any]) -> Iterator[LineageEntry]:
    if not sample["rolled_back"]:
        return
    query = "SELECT id FROM events WHERE kind = 'RolledBack' AND id > ? ORDER BY id LIMIT 1"
    ids = [row[0] for row in rows.execute(query, (sample["id"],))]
    for id, time, kind, fields in _events(rows, ids):
        text = f"to step {fields['to_step']}: {fields['reason']}"
        yield LineageEntry(time=time, id=id, kind=kind, title="rolled back", text=text, fields=fields)
