"""The state of a run as operators see it: ready, healthy, and all metrics.

The thread of the run calls `attach`, `detach` and sets the fields; all other methods belong to the server's thread.
Nothing here waits for the run, and the run waits only in `detach`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from roll.journal.events import RunStarted, WeightsPublished
from roll.journal.store import Journal, Reader
from roll.monitoring.journal_counts import JournalCounts, JournalLag
from roll.monitoring.memory import add_memory
from roll.monitoring.samples import Scrape
from roll.monitoring.step_metrics import StepMetrics
from roll.tracking.phases import PhaseWatch

LOAD, IDLE = "load", "idle"
"""Phases without an entry of the loop: before the start of workers and services, and between two phases of a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLabels:
    """What names the run, and how long it is."""

    run: str
    version: str
    algorithm: str
    model: str
    steps: int
    trajectories_per_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveState:
    """The parts of a running loop that a scrape reads; called from the server's thread."""

    num_slots: Callable[[], int]
    num_free: Callable[[], int]
    num_ready: Callable[[], int]
    num_tokens: Callable[[], int]
    """Changes whenever a token is sampled."""
    attempts: Callable[[], Mapping[str, int]]
    """Number of attempts by what they wait for."""


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """Answer of a probe: a line that gives the reason."""

    ok: bool
    line: str


class Monitor:
    """Collects what the sink, the journal and the loop of one run have."""

    def __init__(
        self, labels: RunLabels, *, stalled_after_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._labels, self._stalled_after_s, self._clock = labels, stalled_after_s, clock
        self.steps = StepMetrics(labels.trajectories_per_step)
        """A sink of the run."""
        self.watch: PhaseWatch | None = None
        """The phases of the run; None before its start."""
        self.live: LiveState | None = None
        """None until the loop is built."""
        self._counts, self._lag = JournalCounts(), JournalLag(lambda: 0)
        self._path: Path | None = None
        self._reading = threading.Lock()
        """Held during reads of the journal, so that it is not closed in the middle of one."""
        self._attached, self._first_event = False, 0
        """Events of this process have higher ids."""
        self._began = self._progressed = clock()
        self._began_time = time.time()
        self._seen: object = None
        self._pid = os.getpid()

    def attach(self, journal: Journal) -> None:
        """Read this journal from now on, until it closes."""
        self._first_event, self._lag = journal.position(), JournalLag(journal.position)
        self._path, self._attached = journal.path, True
        journal.before_close(self.detach)

    def detach(self) -> None:
        """Read the journal no longer; the last counts stay."""
        with self._reading:
            self._path = None

    def poll(self) -> None:
        """Note whether anything has happened since the last call."""
        now, phase = self._clock(), self._phase()
        tokens = None if self.live is None else self.live.num_tokens()
        seen = (self._lag.poll(now), self.steps.written, phase, tokens)
        if seen != self._seen:
            self._seen, self._progressed = seen, now

    def health(self) -> ProbeAnswer:
        """Whether the run makes progress."""
        self.poll()
        name, seconds = self._describe_phase()
        still_s = self._clock() - self._progressed
        if still_s > self._stalled_after_s:
            limit = f"metrics.stalled_after_s is {self._stalled_after_s:g}"
            return ProbeAnswer(
                False, f"stalled: no progress for {still_s:.0f} s, in phase {name} for {seconds:.0f} s; {limit}"
            )
        return ProbeAnswer(True, f"ok: progress {still_s:.0f} s ago, in phase {name} for {seconds:.0f} s")

    def readiness(self) -> ProbeAnswer:
        """Whether this process has served a version of the weights."""
        if not self._is_ready():
            self._read_journal()
        if self._is_ready():
            return ProbeAnswer(True, "ready")
        name, seconds = self._describe_phase()
        started = self._counts.newest(RunStarted)
        if started is not None and started.id > self._first_event:
            name = "first weight sync"
        return ProbeAnswer(False, f"not ready: {name}, for {seconds:.0f} s")

    def scrape(self) -> Scrape:
        """All metrics, now."""
        self.poll()
        self._read_journal()
        scrape, labels, now = Scrape(), self._labels, self._clock()
        scrape.set("roll_run_info", 1, labels.run, labels.version, labels.algorithm, labels.model)
        scrape.set("roll_ready", self._is_ready())
        scrape.set("roll_phase", 1, self._phase()[0])
        scrape.set("roll_progress_age_seconds", now - self._progressed)
        scrape.set("roll_start_timestamp_seconds", self._began_time)
        scrape.set("roll_planned_steps", labels.steps)
        self.steps.add_to(scrape)
        if self._attached:  # counters that start at 0 and then get their history would look like a sudden increase
            self._counts.add_to(scrape)
            self._lag.add_to(scrape, self._counts.position, now)
        if (live := self.live) is not None:
            _add_live(live, scrape)
        add_memory(scrape, self._pid)
        return scrape

    def _is_ready(self) -> bool:
        published = self._counts.newest(WeightsPublished)
        return self.steps.written > 0 or (published is not None and published.id > self._first_event)

    def _phase(self) -> tuple[str, float]:
        """The current phase and when it began, on the clock of its watch."""
        if self.watch is None:
            return LOAD, self._began
        name, began = self.watch.current
        return name or IDLE, began

    def _describe_phase(self) -> tuple[str, float]:
        name, began = self._phase()
        return name, self._clock() - began

    def _read_journal(self) -> None:
        with self._reading:
            if self._path is not None:
                with closing(Reader(self._path)) as reader:
                    self._counts.read(reader)


def _add_live(live: LiveState, scrape: Scrape) -> None:
    scrape.set("roll_group_slots", live.num_slots())
    scrape.set("roll_groups_in_flight", live.num_slots() - live.num_free())
    scrape.set("roll_groups_ready", live.num_ready())
    for state, number in live.attempts().items():
        scrape.set("roll_attempts_in_flight", number, state)
