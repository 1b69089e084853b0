"""A run as a trace that Perfetto and Chrome show: workers as tracks, and every phase of every sample.

Times of a turn are durations, so turns are laid end to end from where the attempt began: at its admission, at the end
of the try before it, or at the start of the process that went on with it. All that a reply waited for a generator
stands before it, also where a change of version made it wait once more in the middle.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from roll.errors import ConfigError
from roll.journal.events import Admitted, Event, Published, RunStarted, Taken
from roll.journal.records import Entry, Kept, Wanted
from roll.journal.store import Reader
from roll.report.svg import draw

MOST = 20_000
"""Trajectories of one trace; viewers give up on many more."""
_WORKERS, _SAMPLES = 1, 2
Traced: TypeAlias = dict[str, Any]


class _Times:
    """When things happened to groups, from the events."""

    def __init__(self, events: Iterable[Entry[Event]]) -> None:
        self.origin = 0.0
        """Of the first event."""
        self.taken: dict[int, tuple[int, float]] = {}
        """By group: the step that trained it, and when that began."""
        self.trained: dict[int, float] = {}
        """By step: when its weights were published."""
        self._started: list[float] = []
        self._admitted: dict[int, float] = {}
        self._tried: dict[tuple[int, int], float] = {}
        for entry in events:
            self.origin = self.origin or entry.time
            self._apply(entry)

    def begin(self, kept: Kept) -> float:
        """When this attempt began; call it for all attempts, in order."""
        attempt = (kept.group, kept.sibling)
        since = [self._tried.get(attempt, 0.0), self._admitted.get(kept.group, 0.0), *self._started]
        self._tried[attempt] = kept.ended
        return max((time for time in since if 0.0 < time <= kept.ended), default=kept.ended)

    def _apply(self, entry: Entry[Event]) -> None:
        match entry.event:
            case RunStarted():
                self._started.append(entry.time)
            case Admitted(group=group):
                self._admitted[group] = entry.time
            case Taken(step=step, groups=groups):
                self.taken |= dict.fromkeys(groups, (step, entry.time))
                self.trained.pop(step, None)
            case Published(step=step):  # a process that goes on publishes the last step once more
                self.trained.setdefault(step, entry.time)
            case _:
                pass


@dataclass(frozen=True, slots=True)
class Phase:
    """One stretch of a sample's life."""

    name: str
    began: float
    ended: float


Lives: TypeAlias = Sequence[tuple[Kept, Sequence[Phase]]]


def write(directory: Path, output: Path, steps: str | None = None) -> int:
    """The trace of the run in `directory`, or of some of its steps; gives how many trajectories it has.

    As JSON, or as a picture where `output` ends with .svg.
    """
    reader = Reader(directory / "journal.db")
    with reader.steady():
        times = _Times(reader.events())
        kept = _chosen(reader, times, _range(steps))
        lives = [(found, _life(found, times)) for found in kept]
        window = _window(lives) if steps is not None else (-math.inf, math.inf)
        events = [*_named(), *_spans(reader, times, window), *_samples(lives, times)]
    reader.close()
    try:
        if output.suffix == ".svg":
            output.write_text(draw(events), encoding="utf-8")
        else:
            output.write_bytes(msgspec.json.encode({"traceEvents": events, "displayTimeUnit": "ms"}))
    except OSError as error:
        raise ConfigError(f"--output {output}: cannot be written ({error.strerror}); name another file") from error
    return len(kept)


def phases(kept: Kept, began: float, ended: float) -> Iterator[Phase]:
    """What an attempt did between two times; what its turns do not explain is scoring, or the controller's delay."""
    if kept.trajectory is None:
        yield Phase("attempt (pruned)", began, ended)
        return
    now = began
    for number, turn in enumerate(kept.trajectory.turns, 1):
        for name, seconds in (
            (f"queued for turn {number}", turn.queued_s),
            (f"generating turn {number}", turn.generated_s - turn.queued_s),
            ("environment", turn.waited_s),
        ):
            until = min(now + seconds, ended)
            if until > now:
                yield Phase(name, now, until)
            now = max(now, until)
    if ended > now:
        yield Phase("scoring" if kept.trajectory.score else "the controller", now, ended)


def _range(steps: str | None) -> range | None:
    if steps is None:
        return None
    first, colon, last = steps.partition(":")
    if not (colon and first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
        raise ConfigError(f"--steps: two steps expected, such as 10:12 (got {steps!r}); the first and the last of them")
    return range(int(first), int(last) + 1)


def _chosen(reader: Reader, times: _Times, steps: range | None) -> list[Kept]:
    """The trajectories to show: all, or what some steps trained on with all that their groups attempted."""
    chosen = [None] if steps is None else [group for group, (step, _) in times.taken.items() if step in steps]
    if steps is not None and not chosen:
        raise ConfigError(f"--steps: nothing was trained on in steps {steps[0]} to {steps[-1]}; see `roll report`")
    kept: list[Kept] = []
    for group in chosen:
        for found in reader.trajectories(Wanted(group=group)):
            kept.append(found)
            if len(kept) > MOST:
                raise ConfigError(f"more than {MOST} trajectories are too many for one trace; choose some --steps A:B")
    return kept


def _named() -> Iterator[Traced]:
    for process, name in ((_WORKERS, "workers"), (_SAMPLES, "samples")):
        yield {"ph": "M", "name": "process_name", "pid": process, "tid": 0, "ts": 0, "args": {"name": name}}


def _spans(reader: Reader, times: _Times, window: tuple[float, float]) -> Iterator[Traced]:
    """Workers as threads, with what they did in this stretch of time."""
    tracks: dict[str, int] = {}
    spans = [span for span in reader.spans() if span.ended > window[0] and span.began < window[1]]
    for span in sorted(spans, key=lambda span: span.began):
        if span.worker not in tracks:
            tracks[span.worker] = len(tracks) + 1
            about = {"ph": "M", "name": "thread_name", "pid": _WORKERS, "tid": tracks[span.worker], "ts": 0}
            yield about | {"args": {"name": span.worker}}
        began, ended = _micros(span.began, times), _micros(span.ended, times)
        about = {"ph": "X", "name": span.doing, "cat": "worker", "pid": _WORKERS, "tid": tracks[span.worker]}
        yield about | {"ts": began, "dur": max(0, ended - began)}


def _window(lives: Lives) -> tuple[float, float]:
    found = [phase for _, life in lives for phase in life]
    return min(phase.began for phase in found), max(phase.ended for phase in found)


def _samples(lives: Lives, times: _Times) -> Iterator[Traced]:
    """A track for each attempt: its whole life around its phases."""
    for kept, life in lives:
        name = f"group {kept.group}.{kept.sibling}"
        about = {"task": kept.task, "domain": kept.domain, "status": kept.status, "reward": kept.reward}
        about |= {"tokens": kept.num_tokens, "step": kept.step}
        yield _mark("b", name, kept, life[0].began, times) | {"args": about}
        for phase in life:
            yield _mark("b", phase.name, kept, phase.began, times)
            yield _mark("e", phase.name, kept, max(phase.began, phase.ended), times)
        yield _mark("e", name, kept, max(life[0].began, life[-1].ended), times)


def _life(kept: Kept, times: _Times) -> list[Phase]:
    """From the attempt's begin to the publication of what it helped to train, as far as it came."""
    began = times.begin(kept)
    life = list(phases(kept, began, kept.ended))
    if kept.step is not None and kept.group in times.taken:
        step, taken = times.taken[kept.group]
        trained = Phase(f"trained in step {step}", taken, times.trained.get(step, taken))
        life += [Phase("ready", kept.ended, taken), trained]
    return life or [Phase("attempt", began, kept.ended)]


def _mark(kind: str, name: str, kept: Kept, when: float, times: _Times) -> Traced:
    about = {"ph": kind, "name": name, "cat": "sample", "id": kept.id, "pid": _SAMPLES, "tid": 0}
    return about | {"ts": _micros(when, times)}


def _micros(when: float, times: _Times) -> int:
    """Since the first event; whole ones, so that what touches still touches."""
    return round((when - times.origin) * 1e6)
