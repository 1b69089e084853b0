"""The first view of a run: curves with standard errors, domains, counts and notices.

It needs no index: everything comes from the metrics and the summary of the journal.
"""

from __future__ import annotations

from typing import Any

from roll.watch.metrics import SeriesQuery
from roll.watch.standard_errors import standard_error
from roll.watch.view import RunView

PHASES = tuple(f"time/{name}" for name in ("wait", "score", "update", "publish", "validate", "checkpoint", "other"))
NAMES = (
    *("reward/mean", "domain/*/reward", "validation/*", "speed/tokens_per_s", "staleness/mean", "staleness/max"),
    *("time/*", "time/other", "length/mean", "length/max", "length/truncated", "loss/entropy", "loss/kl"),
    *("loss/grad_norm", "kl/reference", "sampler_mismatch/mean", "sampler_mismatch/max", "failed/*"),
    *("filtered/groups", "stale/groups", "waiting/groups", "sft/loss", "sft/accuracy"),
)
_EDGE = 10
"""Steps over which the first and the last reward of a domain are means."""


def describe_overview(view: RunView, points: int, cursor: str) -> dict[str, Any]:
    """The answer of `/overview`: all of it, or what is new since the answer with this cursor.

    `notices` is None where none is new.
    """
    series_cursor, _, notice = cursor.partition(".")
    series = view.metrics.series(SeriesQuery(names=NAMES, points=points, cursor=series_cursor), standard_error)
    summary = view.summary
    return {
        "state": view.state(),
        "cursor": f"{series['cursor']}.{summary.last_notice}",
        "series": series,
        "phases": [name for name in PHASES if name in series["series"]],
        "domains": [_domain(view, name) for name in sorted(summary.domains)],
        "notices": None if series["from"] and notice == str(summary.last_notice) else summary.notices(),
        "numbers": {
            "wall_s": view.metrics.wall_s(),
            "attempts": sum(counts.attempts for counts in summary.domains.values()),
            "tokens": sum(counts.tokens for counts in summary.domains.values()),
            "trained": summary.num_trained,
            "failed": summary.num_failures,
        },
    }


def _domain(view: RunView, name: str) -> dict[str, Any]:
    counts = view.summary.domains[name]
    metric = f"domain/{name}/reward"
    if len(view.summary.domains) == 1 and metric not in view.metrics.names:
        metric = "reward/mean"
    first, last = view.metrics.edges(metric, _EDGE)
    return {
        "domain": name,
        **{each: getattr(counts, each) for each in ("attempts", "valid", "failed", "truncated")},
        "reward": counts.rewards / counts.rewarded if counts.rewarded else None,
        "tokens": counts.tokens / counts.attempts,
        "reward_first": sum(first) / len(first) if first else None,
        "reward_last": sum(last) / len(last) if last else None,
        "edge_steps": len(first),
    }
