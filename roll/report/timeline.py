"""A run as a trace for Perfetto or Chrome: one track per worker, and every phase of every sample.

Turns record durations, so they are placed end to end from the start of the attempt: its admission, the end of the try
before it, or the start of the process that resumed it. All waits of a response for a generator are drawn before it,
also the wait in the middle that a change of version causes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from roll.errors import ConfigError
from roll.journal.events import Event, GroupAdmitted, RunStarted, StepStarted, WeightsPublished
from roll.journal.records import JournalEntry, StoredTrajectory, TrajectoryQuery
from roll.journal.store import Reader
from roll.report.journals import open_journal
from roll.report.svg import draw

MAX_TRAJECTORIES = 20_000
"""Trajectories per trace; viewers fail on many more."""
_WORKERS, _SAMPLES = 1, 2
TraceEvent: TypeAlias = dict[str, Any]


class RunTimes:
    """Times of the events of groups and steps."""

    def __init__(self, events: Iterable[JournalEntry[Event]]) -> None:
        self.origin = 0.0
        """Time of the first event."""
        self.step_start: dict[int, tuple[int, float]] = {}
        """By group: the step that trained on it, and its start."""
        self.step_end: dict[int, float] = {}
        """By step: the publication of its weights."""
        self._run_starts: list[float] = []
        self._admitted: dict[int, float] = {}
        self._last_try: dict[tuple[int, int], float] = {}
        for entry in events:
            self.origin = self.origin or entry.time
            match entry.event:
                case RunStarted():
                    self._run_starts.append(entry.time)
                case GroupAdmitted(group=group):
                    self._admitted[group] = entry.time
                case StepStarted(step=step, groups=groups):
                    self.step_start |= dict.fromkeys(groups, (step, entry.time))
                    self.step_end.pop(step, None)
                case WeightsPublished(step=step):  # a resumed process publishes the last step again
                    self.step_end.setdefault(step, entry.time)
                case _:
                    pass

    def attempt_start(self, stored: StoredTrajectory) -> float:
        """Start of this attempt; call it for all attempts, in order."""
        attempt = (stored.group, stored.sibling)
        starts = [self._last_try.get(attempt, 0.0), self._admitted.get(stored.group, 0.0), *self._run_starts]
        self._last_try[attempt] = stored.ended
        return max((time for time in starts if 0.0 < time <= stored.ended), default=stored.ended)


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase of a sample."""

    name: str
    start: float
    end: float


SamplePhases: TypeAlias = Sequence[tuple[StoredTrajectory, Sequence[Phase]]]


def write(directory: Path, output: Path, steps: str | None = None) -> int:
    """Write the trace of the run in `directory`, or of some of its steps; returns its number of trajectories.

    The format is JSON, or a picture if `output` ends with .svg.
    """
    with open_journal(directory) as reader, reader.snapshot():
        times = RunTimes(reader.events())
        trajectories = _select(reader, times, _parse_range(steps))
        samples = [(stored, _sample_phases(stored, times)) for stored in trajectories]
        window = _window(samples) if steps is not None else (-math.inf, math.inf)
        names = {_WORKERS: "workers", _SAMPLES: "samples"}
        head = [_name_event("process_name", process, 0, name) for process, name in names.items()]
        events = [*head, *_worker_events(reader, times, window), *_sample_events(samples, times)]
    try:
        if output.suffix == ".svg":
            output.write_text(draw(events), encoding="utf-8", errors="backslashreplace")
        else:
            output.write_bytes(msgspec.json.encode({"traceEvents": events, "displayTimeUnit": "ms"}))
    except OSError as error:
        raise ConfigError(f"--output {output}: cannot be written ({error.strerror}); name another file") from error
    return len(trajectories)


def phases(stored: StoredTrajectory, start: float, end: float) -> Iterator[Phase]:
    """Phases of an attempt between two times; time outside its turns is scoring, or the controller's delay."""
    if stored.trajectory is None:
        yield Phase("attempt (pruned)", start, end)
        return
    now = start
    for number, turn in enumerate(stored.trajectory.turns, 1):
        for name, seconds in (
            (f"queued for turn {number}", turn.queued_s),
            (f"generating turn {number}", turn.generated_s - turn.queued_s),
            ("environment", turn.waited_s),
        ):
            until = min(now + seconds, end)
            if until > now:
                yield Phase(name, now, until)
            now = max(now, until)
    if end > now:
        yield Phase("scoring" if stored.trajectory.score else "the controller", now, end)


def _parse_range(steps: str | None) -> range | None:
    if steps is None:
        return None
    first, colon, last = steps.partition(":")
    if not (colon and first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
        raise ConfigError(f"--steps: expected the first and the last step, such as 10:12 (got {steps!r}); change it")
    return range(int(first), int(last) + 1)


def _select(reader: Reader, times: RunTimes, steps: range | None) -> list[StoredTrajectory]:
    """The trajectories to show: all, or all attempts of the groups that some steps trained on."""
    groups = [None] if steps is None else [group for group, (step, _) in times.step_start.items() if step in steps]
    if steps is not None and not groups:
        raise ConfigError(f"--steps: nothing was trained on in steps {steps[0]} to {steps[-1]}; see `roll report`")
    trajectories: list[StoredTrajectory] = []
    for group in groups:
        for stored in reader.trajectories(TrajectoryQuery(group=group)):
            trajectories.append(stored)
            if len(trajectories) > MAX_TRAJECTORIES:
                raise ConfigError(
                    f"more than {MAX_TRAJECTORIES} trajectories are too many for one trace; choose some --steps A:B"
                )
    return trajectories


def _name_event(kind: str, process: int, thread: int, name: str) -> TraceEvent:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "ts": 0, "args": {"name": name}}


def _worker_events(reader: Reader, times: RunTimes, window: tuple[float, float]) -> Iterator[TraceEvent]:
    """One thread per worker, with its activities in this window of time."""
    tracks: dict[str, int] = {}
    spans = [span for span in reader.spans() if span.end > window[0] and span.start < window[1]]
    for span in sorted(spans, key=lambda span: span.start):
        if span.worker not in tracks:
            tracks[span.worker] = len(tracks) + 1
            yield _name_event("thread_name", _WORKERS, tracks[span.worker], span.worker)
        start, end = _micros(span.start, times), _micros(span.end, times)
        event = {"ph": "X", "name": span.activity, "cat": "worker", "pid": _WORKERS, "tid": tracks[span.worker]}
        yield event | {"ts": start, "dur": max(0, end - start)}


def _window(samples: SamplePhases) -> tuple[float, float]:
    every = [phase for _, phases in samples for phase in phases]
    return min(phase.start for phase in every), max(phase.end for phase in every)


def _sample_events(samples: SamplePhases, times: RunTimes) -> Iterator[TraceEvent]:
    """One track per attempt: an event for the whole sample around its phases."""
    for stored, phases in samples:
        name = f"group {stored.group}.{stored.sibling}"
        args = {"task": stored.task, "domain": stored.domain, "status": stored.status, "reward": stored.reward}
        args |= {"tokens": stored.num_tokens, "step": stored.step}
        yield _mark("b", name, stored, phases[0].start, times) | {"args": args}
        for phase in phases:
            yield _mark("b", phase.name, stored, phase.start, times)
            yield _mark("e", phase.name, stored, max(phase.start, phase.end), times)
        yield _mark("e", name, stored, max(phases[0].start, phases[-1].end), times)


def _sample_phases(stored: StoredTrajectory, times: RunTimes) -> list[Phase]:
    """From the start of the attempt to the publication of the step that trained on it, as far as it came."""
    start = times.attempt_start(stored)
    result = list(phases(stored, start, stored.ended))
    if stored.step is not None and stored.group in times.step_start:
        step, training = times.step_start[stored.group]
        trained = Phase(f"trained in step {step}", training, times.step_end.get(step, training))
        result += [Phase("ready", stored.ended, training), trained]
    return result or [Phase("attempt", start, stored.ended)]


def _mark(kind: str, name: str, stored: StoredTrajectory, time: float, times: RunTimes) -> TraceEvent:
    event = {"ph": kind, "name": name, "cat": "sample", "id": stored.id, "pid": _SAMPLES, "tid": 0}
    return event | {"ts": _micros(time, times)}


def _micros(time: float, times: RunTimes) -> int:
    """Whole microseconds since the first event, so that adjacent phases still touch."""
    return round((time - times.origin) * 1e6)
