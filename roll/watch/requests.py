"""The answers about one run: which function computes each, with its parameters."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from roll.errors import ConfigError
from roll.tracking.glossary import describe
from roll.watch.comparison import MOST_RUNS, compare
from roll.watch.explanation import Explanations
from roll.watch.faults import describe_faults
from roll.watch.folder import RunFolder
from roll.watch.lineage import trace
from roll.watch.metrics import SeriesQuery
from roll.watch.notices import list_notices
from roll.watch.overview import describe_overview
from roll.watch.sample import describe_sample, find_body
from roll.watch.samples import facets, list_samples, parse_filter, parse_order, reward_histogram
from roll.watch.scheduler import choose_window, describe_scheduler
from roll.watch.standard_errors import standard_error
from roll.watch.token_columns import TokenRange
from roll.watch.versions import list_versions
from roll.watch.view import NotFound, RunView

Parameters: TypeAlias = Mapping[str, Sequence[str]]
_FIRST_S = 0.7
"""Longest time that a request waits until the index has the newest rows."""
_READ_S = 5.0
"""Longest wait of a link to a sample for a journal that is still being read."""
_MAX_PAGE = 1000


class RunRequests:
    """Answers requests about the runs of a folder."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder, self._explanations = folder, Explanations()
        self._answers: dict[str, Callable[[RunView, Parameters], dict[str, Any]]] = {
            "state": lambda view, _: view.state(),
            "overview": _overview,
            "metrics": _metrics,
            "series": _series,
            "samples": _samples,
            "config": self._config,
            "facets": lambda view, _: _with_rows(view, facets),
            "faults": lambda view, _: _with_rows(view, describe_faults),
            "notices": _notices,
            "rewards": _rewards,
            "scheduler": _scheduler,
            "versions": _versions,
        }

    def answer(self, run: str, name: str, id: str, parameters: Parameters) -> dict[str, Any]:
        """The answer to a request about one run; with an `id`, about one attempt."""
        if not id and name not in self._answers:
            raise NotFound(f"{name[:40]!a}: no such address; use one of {', '.join(sorted(self._answers))}")
        view = self._folder.view(run)
        position = view.position
        result = _sample(view, id, parameters) if id else self._answers[name](view, parameters)
        return {"position": position, **result}

    def compare(self, parameters: Parameters) -> dict[str, Any]:
        """The answer of `/compare`."""
        names = [name for text in parameters.get("runs", ()) for name in text.split(",") if name]
        if not 1 <= len(names) <= MOST_RUNS or len(set(names)) < len(names):
            raise ConfigError(f"runs: expected 1 to {MOST_RUNS} different names (got {len(names)}); change them")
        return compare([self._folder.view(name) for name in names], _whole(parameters, "points", 300))

    def _config(self, view: RunView, _: Parameters) -> dict[str, Any]:
        path = view.directory / "config.yaml"
        try:
            text = path.read_text(encoding="utf-8", errors="backslashreplace")
        except OSError:
            text = None
        return {"text": text, "explain": self._explanations.request(path)}


def _overview(view: RunView, parameters: Parameters) -> dict[str, Any]:
    """With the cursor of an answer that is still right, only that."""
    points, sent = _whole(parameters, "points", 500), next(iter(parameters.get("cursor", ())), "")
    stamp, (known, _, cursor) = view.stamp(), sent.partition("_")
    if cursor and known == stamp:
        return {"cursor": sent, "unchanged": True}
    answer = describe_overview(view, points, cursor)
    return {**answer, "cursor": f"{stamp}_{answer['cursor']}"}


def _metrics(view: RunView, _: Parameters) -> dict[str, Any]:
    entries = [
        {"name": name, "meaning": describe(name), "last": value, "step": step}
        for name, (step, value) in sorted(view.metrics.last().items())
    ]
    return {"metrics": entries}


def _series(view: RunView, parameters: Parameters) -> dict[str, Any]:
    names = tuple(name for text in parameters.get("names", ()) for name in text.split(",") if name)
    if not names:
        raise ConfigError("names: missing; give the metrics to show, such as names=reward/mean,time/*")
    query = SeriesQuery(
        names=names,
        points=_whole(parameters, "points", 500),
        first=_number(parameters, "from", -math.inf),
        last=_number(parameters, "to", math.inf),
    )
    return view.metrics.series(query, standard_error)


def _samples(view: RunView, parameters: Parameters) -> dict[str, Any]:
    chosen, order = parse_filter(parameters), parse_order(parameters)
    answer = _with_rows(view, lambda rows: list_samples(rows, chosen, order))
    index = view.index
    searched = None if index is None or not chosen.text else {"texts": index.num_texts, "total": index.total}
    return {**answer, "searched": searched}


def _rewards(view: RunView, parameters: Parameters) -> dict[str, Any]:
    """The histogram of rewards follows all filters but the one on the reward, which its bars set."""
    chosen = parse_filter({name: values for name, values in parameters.items() if name != "reward"})
    return _with_rows(view, lambda rows: reward_histogram(rows, chosen))


def _sample(view: RunView, id: str, parameters: Parameters) -> dict[str, Any]:
    if not (id.isascii() and id.isdecimal() and len(id) < 16):
        raise NotFound(f"sample {id[:40]!a}: not a number; choose one of the table")
    tokens = TokenRange(first=_whole(parameters, "tokens_from", 0), limit=_whole(parameters, "tokens_limit", 4000))

    def read(rows: sqlite3.Connection) -> dict[str, Any]:
        result = describe_sample(rows, int(id), view.decoder, tokens, view.metrics)
        return {**result, "lineage": trace(rows, result["sample"], find_body(rows, int(id)))}

    return _with_rows(view, read, _READ_S)


def _notices(view: RunView, parameters: Parameters) -> dict[str, Any]:
    limit = _limit(parameters, 100)
    before = _whole(parameters, "before", 0) or None
    notices = _with_rows(view, lambda rows: {"notices": list_notices(rows, before=before, limit=limit + 1)})["notices"]
    return {"notices": notices[:limit], "next": notices[limit - 1]["id"] if len(notices) > limit else None}


def _scheduler(view: RunView, parameters: Parameters) -> dict[str, Any]:
    start, end = (_number(parameters, name, math.nan) for name in ("from", "to"))
    points = _whole(parameters, "points", 600)
    slots = view.config("rollout", "num_slots")

    def read(rows: sqlite3.Connection) -> dict[str, Any]:
        window = choose_window(rows, None if math.isnan(start) else start, None if math.isnan(end) else end, points)
        return describe_scheduler(rows, window, slots)

    return _with_rows(view, read)


def _versions(view: RunView, parameters: Parameters) -> dict[str, Any]:
    before = _whole(parameters, "before", -1)
    limit = _limit(parameters, 200)
    return _with_rows(view, lambda rows: list_versions(rows, before=None if before < 0 else before, limit=limit))


def _with_rows(
    view: RunView, read: Callable[[sqlite3.Connection], dict[str, Any]], wait_s: float = _FIRST_S
) -> dict[str, Any]:
    with view.indexed_rows(wait_s) as rows:
        return read(rows)


def _number(parameters: Parameters, name: str, default: float) -> float:
    text = next((text for text in parameters.get(name, ()) if text), "")
    if not text:
        return default
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ConfigError(f"{name}: expected a number (got {text[:40]!a}); change it")
    return number


def _whole(parameters: Parameters, name: str, default: int) -> int:
    number = _number(parameters, name, default)
    if number != int(number) or abs(number) > 2**53:
        raise ConfigError(f"{name}: expected a whole number (got {number:g}); change it")
    return int(number)


def _limit(parameters: Parameters, default: int) -> int:
    limit = _whole(parameters, "limit", default)
    if not 1 <= limit <= _MAX_PAGE:
        raise ConfigError(f"limit: expected 1 to {_MAX_PAGE} (got {limit}); change it")
    return limit
