"""Every second of every worker, accounted for against the wall clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from roll.journal.events import Event, RunStarted
from roll.journal.records import ActivitySpan, JournalEntry

UNACCOUNTED = "unaccounted"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTime:
    """Seconds by activity of one worker, or of all workers together."""

    worker: str
    wall_s: float
    """Total of the run's processes in which the worker did anything."""
    activity_s: dict[str, float]
    unaccounted_s: float
    """The rest; negative where a worker recorded two activities at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeAccount:
    """Seconds of a run by worker and activity."""

    wall_s: float
    """Total lifetime of the run's processes, each from its start to the last record of it."""
    not_running_s: float
    """Time between the processes."""
    num_processes: int
    outside_s: float
    """Activities before the run's start was recorded; excluded from the fields below."""
    workers: tuple[WorkerTime, ...]
    total: WorkerTime


@dataclass(slots=True)
class ProcessLifetime:
    """Times of the first and the last record of one process of the run."""

    start: float
    end: float


def extend_lifetimes(processes: list[ProcessLifetime], entry: JournalEntry[Event]) -> None:
    """Add the next event to the lifetimes of the run's processes."""
    if not processes or isinstance(entry.event, RunStarted):
        processes.append(ProcessLifetime(entry.time, entry.time))
    processes[-1].end = max(processes[-1].end, entry.time)


def account_time(processes: Sequence[ProcessLifetime], spans: Callable[[], Iterable[ActivitySpan]]) -> TimeAccount:
    """The time account of these processes; every call of `spans` returns all spans."""
    for span in spans():
        started = [process for process in processes if process.start <= span.start]
        # The last record of a process may be a worker's span. But a span that the next process records before its
        # start event does not extend the process before it.
        if started and (len(started) == len(processes) or span.start <= started[-1].end):
            started[-1].end = max(started[-1].end, span.end)
    for process, following in pairwise(processes):
        process.end = min(process.end, following.start)  # it was gone when the next one started
    seconds: dict[str, dict[str, float]] = {}
    present: dict[str, set[int]] = {}
    outside = 0.0
    for span in spans():
        activities = seconds.setdefault(span.worker, {})
        inside = [_overlap(span, process) for process in processes]
        activities[span.activity] = activities.get(span.activity, 0.0) + sum(inside)
        present.setdefault(span.worker, set()).update(index for index, overlap in enumerate(inside) if overlap)
        outside += span.end - span.start - sum(inside)
    walls = [process.end - process.start for process in processes]
    workers = [
        _worker_time(worker, sum(walls[index] for index in present[worker]), activities)
        for worker, activities in sorted(seconds.items())
    ]
    return TimeAccount(
        wall_s=sum(walls),
        not_running_s=processes[-1].end - processes[0].start - sum(walls),
        num_processes=len(processes),
        outside_s=outside,
        workers=tuple(workers),
        total=_total(workers),
    )


def _overlap(span: ActivitySpan, process: ProcessLifetime) -> float:
    return max(0.0, min(span.end, process.end) - max(span.start, process.start))


def _worker_time(worker: str, wall_s: float, activity_s: dict[str, float]) -> WorkerTime:
    by_size = dict(sorted(activity_s.items(), key=lambda item: -item[1]))
    return WorkerTime(worker=worker, wall_s=wall_s, activity_s=by_size, unaccounted_s=wall_s - sum(activity_s.values()))


def _total(workers: Sequence[WorkerTime]) -> WorkerTime:
    seconds: dict[str, float] = {}
    for worker in workers:
        for activity, spent in worker.activity_s.items():
            seconds[activity] = seconds.get(activity, 0.0) + spent
    return _worker_time("all", sum(worker.wall_s for worker in workers), seconds)
