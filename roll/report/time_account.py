"""Every second of every worker, against the wall clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from roll.journal.events import Event, RunStarted
from roll.journal.records import Entry, Span

UNACCOUNTED = "unaccounted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """How one worker, or all of them together, spent the seconds there were."""

    worker: str
    wall_s: float
    """Of the processes of the run in which it did anything."""
    doing_s: dict[str, float]
    unaccounted_s: float
    """The rest; below 0 where a worker said to do two things at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hours:
    """Where the time went."""

    wall_s: float
    """While a process of the run was there, from its start to the last that is known of it."""
    not_running_s: float
    """Between the processes."""
    num_processes: int
    outside_s: float
    """What workers did before the run said that it had started; no part of what follows."""
    workers: tuple[Sheet, ...]
    total: Sheet


@dataclass(slots=True)
class Process:
    """One process of the run: since when, and until when anything is known of it."""

    began: float
    ended: float


@dataclass(slots=True)
class Processes:
    """When the run's processes were there, gathered event by event."""

    found: list[Process] = field(default_factory=list[Process])

    def apply(self, entry: Entry[Event]) -> None:
        if not self.found or isinstance(entry.event, RunStarted):
            self.found.append(Process(entry.time, entry.time))
        self.found[-1].ended = max(self.found[-1].ended, entry.time)


def hours(processes: Sequence[Process], spans: Callable[[], Iterable[Span]]) -> Hours:
    """The account of these processes; `spans` gives every span, as often as it is called."""
    for span in spans():
        within = [process for process in processes if process.began <= span.began]
        # The last thing that is known of a process may be what a worker did; but what the next one does before it says
        # that it has started is not of the one before it.
        if within and (len(within) == len(processes) or span.began <= within[-1].ended):
            within[-1].ended = max(within[-1].ended, span.ended)
    _separate(processes)
    spent: dict[str, dict[str, float]] = {}
    present: dict[str, set[int]] = {}
    outside = 0.0
    for span in spans():
        doing = spent.setdefault(span.worker, {})
        inside = [_overlap(span, process) for process in processes]
        doing[span.doing] = doing.get(span.doing, 0.0) + sum(inside)
        present.setdefault(span.worker, set()).update(index for index, found in enumerate(inside) if found)
        outside += span.ended - span.began - sum(inside)
    walls = [process.ended - process.began for process in processes]
    sheets = [
        _sheet(worker, sum(walls[index] for index in present[worker]), doing) for worker, doing in sorted(spent.items())
    ]
    return Hours(
        wall_s=sum(walls),
        not_running_s=processes[-1].ended - processes[0].began - sum(walls),
        num_processes=len(processes),
        outside_s=outside,
        workers=tuple(sheets),
        total=_together(sheets),
    )


def _separate(processes: Sequence[Process]) -> None:
    """A process was gone when the next began, whatever one of its workers thought."""
    for process, following in pairwise(processes):
        process.ended = min(process.ended, following.began)


def _overlap(span: Span, process: Process) -> float:
    return max(0.0, min(span.ended, process.ended) - max(span.began, process.began))


def _sheet(worker: str, wall_s: float, doing_s: dict[str, float]) -> Sheet:
    by_size = dict(sorted(doing_s.items(), key=lambda item: -item[1]))
    return Sheet(worker=worker, wall_s=wall_s, doing_s=by_size, unaccounted_s=wall_s - sum(doing_s.values()))


def _together(sheets: Sequence[Sheet]) -> Sheet:
    total: dict[str, float] = {}
    for sheet in sheets:
        for doing, seconds in sheet.doing_s.items():
            total[doing] = total.get(doing, 0.0) + seconds
    return _sheet("all", sum(sheet.wall_s for sheet in sheets), total)
