"""Response times of `roll watch` for a run with 100,000 attempts, over HTTP and in a browser on this machine.

The journal is written through the journal's writer. The first view is measured on a server that has just started, which
has indexed nothing; filters once the index is complete; the delay of an event while a step is being written.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.result import Result
from benchmarks.watch_browser import measure_browser
from benchmarks.watch_run import write_run, write_step
from roll.journal.store import Journal
from roll.tracking.directory import JOURNAL

NUM_SAMPLES = 100_000
VIEW_S, FILTER_S, EVENT_S = 1.0, 0.3, 2.0
"""Limits: of the first view, of a filter, and of the delay of an event."""
_REPEATS, _STEPS = 5, 5
_DEADLINE_S = 1800.0
FIRST_VIEW = ("", "/api/runs", "/api/runs/{run}/overview", "/api/runs/{run}/samples")
"""Everything that the page asks for before its first view is complete."""
FILTERS = (
    *("step=200", "domain=code", "reward=0.9:", "status=truncated&domain=chat", "tokens=200:&sort=-tokens"),
    *("staleness=0&sort=reward", "text=carry7%20one3", "text=task&reward=:0", "text=digits59&sort=-reward"),
)


@dataclass(frozen=True, slots=True)
class Client:
    """Requests to one server."""

    base: str
    token: str

    def get(self, path: str) -> Any:
        """The JSON of an answer; None for other types."""
        request = urllib.request.Request(self.base + path, headers={"Authorization": f"Bearer {self.token}"})
        with urllib.request.urlopen(request, timeout=_DEADLINE_S) as response:
            body = response.read()
            return json.loads(body) if response.headers["Content-Type"].startswith("application/json") else None

    def seconds(self, *paths: str) -> float:
        """Seconds for these requests, one after the other."""
        start = time.perf_counter()
        for path in paths:
            self.get(path)
        return time.perf_counter() - start


@contextmanager
def server(directory: Path) -> Generator[Client]:
    """`roll watch` for a folder, in a process of its own; it listens when the block begins."""
    command = [sys.executable, "-m", "roll", "watch", str(directory), "--no-open"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        base, _, token = process.stdout.readline().strip().partition("/?token=")
        yield Client(base, token)
    finally:
        process.terminate()
        process.wait()


def run() -> Result:
    """The worst of all measurements, each divided by its limit."""
    with tempfile.TemporaryDirectory(prefix="roll-") as folder:
        directory = Path(folder) / "many"
        write_run(directory, NUM_SAMPLES)
        measured = measure(directory)
    limits = {"first_view_s": VIEW_S, "filter_s": FILTER_S, "event_s": EVENT_S}
    worst = max(measured[f"{place}{name}"] / limit for name, limit in limits.items() for place in ("", "browser_"))
    return Result(
        name="watch",
        unit="part of the limit, worst of first view, filter and delay of an event",
        higher_is_better=False,
        ours=worst,
        bound=1.0,
        details={name: round(value, 4) if isinstance(value, float) else value for name, value in measured.items()},
    )


def measure(directory: Path) -> dict[str, Any]:
    """Seconds of the first view, with and without an index, of the slowest filter, and until an event is shown."""
    name = directory.name
    first_view = [path.format(run=name) for path in FIRST_VIEW]
    with server(directory) as client:
        cold_s = client.seconds(*first_view)
        rows_s, texts_s = _wait_for_index(client, name)
        view_s = median(client.seconds(*first_view) for _ in range(_REPEATS))
        filters = {
            query: median(client.seconds(f"/api/runs/{name}/samples?{query}") for _ in range(_REPEATS))
            for query in FILTERS
        }
        pages = ("facets", "scheduler", "versions", "faults", "notices")
        page_s = {page: client.seconds(f"/api/runs/{name}/{page}") for page in pages}
        with closing(Journal(directory / JOURNAL)) as journal:
            steps = itertools.count(client.get(f"/api/runs/{name}/facets")["steps"][1] + 1)
            event_s = max(_event_s(client, name, journal, next(steps)) for _ in range(_STEPS))
            link = f"{client.base}/?token={client.token}"
            browser = measure_browser(link, name, lambda: _commit(journal, next(steps)))
    return {
        **browser,
        "first_view_s": max(cold_s, view_s),
        "cold_first_view_s": cold_s,
        "filter_s": max(filters.values()),
        "event_s": event_s,
        "index_rows_s": rows_s,
        "index_texts_s": texts_s,
        "filters_s": {query: round(seconds, 4) for query, seconds in filters.items()},
        "pages_s": {page: round(seconds, 4) for page, seconds in page_s.items()},
        "num_samples": NUM_SAMPLES,
    }


def _wait_for_index(client: Client, name: str) -> tuple[float, float]:
    """Seconds until all rows, and all texts, are in the index."""
    start, rows_s = time.perf_counter(), 0.0
    while time.perf_counter() - start < _DEADLINE_S:
        phase = client.get(f"/api/runs/{name}/state")["index"]["phase"]
        now = time.perf_counter() - start
        rows_s = rows_s or (now if phase != "records" else 0.0)
        if phase == "done":
            return rows_s, now
        time.sleep(0.1)
    raise AssertionError("the index is not complete")


def _event_s(client: Client, name: str, journal: Journal, step: int) -> float:
    """Seconds from the commit of a step to its first appearance in the table."""
    _commit(journal, step)
    start = time.perf_counter()
    while not client.get(f"/api/runs/{name}/samples?step={step}&limit=1")["rows"]:
        assert time.perf_counter() - start < _DEADLINE_S, "the event was never shown"
        time.sleep(0.02)
    return time.perf_counter() - start


def _commit(journal: Journal, step: int) -> int:
    """Write a step to the file; returns the number of its attempts."""
    number = sum(1 for _ in write_step(journal, step))
    journal.flush()
    return number
