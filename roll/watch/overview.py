"""The first view of a run: curves with standard errors, domains, outcomes and notices."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from statistics import pstdev
from typing import Any

import numpy as np

from roll.report.held_out import HELD_OUT, read_attempts
from roll.watch.metrics import Column, MetricColumns, SeriesQuery
from roll.watch.notices import list_notices
from roll.watch.view import RunView

PHASES = tuple(f"time/{name}" for name in ("wait", "score", "update", "publish", "validate", "checkpoint", "other"))
NAMES = (
    *("reward/mean", "domain/*/reward", "validation/*", "speed/tokens_per_s", "staleness/mean", "staleness/max"),
    *("time/*", "time/other", "length/mean", "length/max", "length/truncated", "loss/entropy", "loss/kl"),
    *("loss/grad_norm", "kl/reference", "sampler_mismatch/mean", "sampler_mismatch/max", "failed/*"),
    *("filtered/groups", "stale/groups", "waiting/groups", "sft/loss", "sft/accuracy"),
)
_NOTICES = 20
_EDGE = 10
"""The first and the last reward of a domain are means over a tenth of the steps."""


class StandardErrors:
    """Standard errors of the metrics of a run, where the number of independent values is known."""

    def __init__(self, metrics: MetricColumns, groups: Mapping[tuple[int, str], int], held_out: _HeldOutCurve) -> None:
        """`groups`: number of groups by step and domain."""
        self._metrics, self._groups, self._held_out = metrics, groups, held_out
        self._steps, _ = metrics.rows()

    def __call__(self, name: str, steps: Column) -> Column | None:
        """One standard error for each of these steps; None if unknown."""
        errors = self._errors(name)
        return None if errors is None else errors[np.isin(self._steps, steps)]

    def _errors(self, name: str) -> Column | None:
        parts = name.split("/")
        if name == "reward/mean":
            return self._training("reward/std", None)
        if parts[0] == "domain" and len(parts) == 3 and parts[2] == "reward":
            return self._training(f"domain/{parts[1]}/std", parts[1])
        if parts[0] == "validation" and parts[-1] in ("reward", "accuracy"):
            return self._validation(name, parts[1] if len(parts) == 3 else None, parts[-1])
        return None

    def _training(self, deviation: str, domain: str | None) -> Column | None:
        """Of a mean over attempts, of which those of one group count as one."""
        if not self._groups:
            return None
        totals: dict[int, int] = {}
        for (step, name), count in self._groups.items():
            if domain in (None, name):
                totals[step] = totals.get(step, 0) + count
        counts = np.array([totals.get(int(step), 0) for step in self._steps], np.float64)
        spread = self._metrics.column(deviation)
        return np.where(counts > 0, spread / np.sqrt(np.maximum(counts, 1.0)), np.nan)

    def _validation(self, name: str, domain: str | None, kind: str) -> Column | None:
        num_tasks, deviation = self._held_out.of(domain)
        if not num_tasks:
            return None
        values = self._metrics.column(name)
        if kind == "accuracy":
            return np.sqrt(np.clip(values * (1 - values), 0.0, None) / num_tasks)
        return np.where(np.isfinite(values), deviation / math.sqrt(num_tasks), np.nan)


class _HeldOutCurve:
    """Number of held-out tasks, and the spread of their rewards in the newest validation that is stored."""

    def __init__(self, directory: Path, last_step: int) -> None:
        try:
            attempts = read_attempts(directory / HELD_OUT, last_step)
        except (OSError, ValueError):
            attempts = {}  # a file that is being replaced: the bands are missing until the next request
        newest = attempts[max(attempts)] if attempts else []
        self._rewards: dict[str, dict[str, list[float]]] = {}
        for row in newest:
            tasks = self._rewards.setdefault(row["source"], {})
            tasks.setdefault(row["id"], []).extend([] if row["reward"] is None else [row["reward"]])

    def of(self, domain: str | None) -> tuple[int, float]:
        """Number of tasks, and the standard deviation of their mean rewards; of all domains for None."""
        sources = [tasks for name, tasks in self._rewards.items() if domain in (None, name)]
        rewards = [values for tasks in sources for values in tasks.values() if values]
        means = [sum(values) / len(values) for values in rewards]
        return len(means), pstdev(means) if len(means) > 1 else 0.0

    def to_json(self) -> dict[str, Any] | None:
        if not self._rewards:
            return None
        return {"num_tasks": self.of(None)[0], "domains": {name: self.of(name)[0] for name in self._rewards}}


def standard_errors(view: RunView, rows: sqlite3.Connection | None) -> StandardErrors:
    """The standard errors of a run, as of now."""
    return StandardErrors(view.metrics, _count_groups(rows), _held_out(view))


def _held_out(view: RunView) -> _HeldOutCurve:
    return _HeldOutCurve(view.directory, view.metrics.last_step() or 0)


def _count_groups(rows: sqlite3.Connection | None) -> dict[tuple[int, str], int]:
    if rows is None:
        return {}
    query = "SELECT step, domain, COUNT(*) FROM groups WHERE step IS NOT NULL GROUP BY 1, 2"
    return {(step, domain): count for step, domain, count in rows.execute(query)}


def describe_overview(view: RunView, rows: sqlite3.Connection | None, points: int) -> dict[str, Any]:
    """The answer of `/overview`; `rows` is None where there is no journal yet."""
    errors = standard_errors(view, rows)
    series = view.metrics.series(SeriesQuery(names=NAMES, points=points), errors)
    return {
        "state": view.state(),
        "series": series,
        "phases": [name for name in PHASES if name in series["series"]],
        "domains": [] if rows is None else _domains(rows),
        "held_out": _held_out(view).to_json(),
        "notices": [] if rows is None else list_notices(rows, before=None, limit=_NOTICES),
        "outcomes": {} if rows is None else _outcomes(rows),
        "numbers": _numbers(view, rows),
    }


def _domains(rows: sqlite3.Connection) -> list[dict[str, Any]]:
    query = """SELECT domain, COUNT(*), SUM(status IN ('finished', 'truncated')), SUM(status LIKE '%_failed'),
        AVG(reward), AVG(tokens), SUM(status = 'truncated'), MIN(step), MAX(step)
        FROM samples GROUP BY domain ORDER BY domain"""
    names = ("domain", "attempts", "valid", "failed", "reward", "tokens", "truncated")
    result: list[dict[str, Any]] = []
    for *values, first, last in rows.execute(query).fetchall():
        domain = dict(zip(names, values, strict=True))
        edges: dict[str, Any] = dict.fromkeys(("reward_first", "reward_last"))
        if first is not None:
            width = (last - first + 1) // _EDGE
            mean = "SELECT AVG(reward) FROM samples WHERE domain = ? AND step BETWEEN ? AND ?"
            ends = {"reward_first": (first, first + width), "reward_last": (last - width, last)}
            edges |= {name: rows.execute(mean, (values[0], *pair)).fetchone()[0] for name, pair in ends.items()}
        result.append({**domain, **edges, "steps": None if first is None else [first, last]})
    return result


def _outcomes(rows: sqlite3.Connection) -> dict[str, int]:
    return dict(rows.execute("SELECT outcome, COUNT(*) FROM samples GROUP BY 1 ORDER BY 2 DESC").fetchall())


def _numbers(view: RunView, rows: sqlite3.Connection | None) -> dict[str, Any]:
    _, times = view.metrics.rows()
    trained = view.metrics.column("tokens/trained")
    wall_s = float(np.nanmax(times) - np.nanmin(times)) if np.isfinite(times).any() else 0.0
    numbers: dict[str, Any] = {"wall_s": wall_s, "trained_tokens": float(np.nan_to_num(trained).sum())}
    if rows is not None:
        query = """SELECT (SELECT COUNT(*) FROM samples), (SELECT COUNT(*) FROM groups),
            (SELECT SUM(tokens) FROM samples), (SELECT COUNT(*) FROM versions)"""
        counts = rows.execute(query).fetchone()
        numbers |= dict(zip(("attempts", "groups", "tokens", "versions"), counts, strict=True))
    return numbers
