"""Counters from the journal of a run; they continue over restarts, since the journal has all earlier events.

Used by one thread, which is not the one that writes the journal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from roll.journal.events import (
    AttemptRetried,
    CheckpointSaved,
    ControllerRestarted,
    Event,
    GeneratorReplaced,
    GroupAdmitted,
    GroupFailed,
    GroupFiltered,
    GroupReady,
    GroupStale,
    HackSuspected,
    NodeAwaited,
    ProxyRequestRefused,
    RunStarted,
    TaskQuarantined,
    TokensGenerated,
    ValidationFinished,
    WeightsPublished,
    WeightsUpdated,
    WorkerMoved,
    WorkerReplaced,
)
from roll.journal.records import KindCount
from roll.journal.store import Reader
from roll.monitoring.samples import Scrape
from roll.types import Status

_COUNTED = {
    GroupAdmitted: "roll_groups_admitted_total",
    GroupReady: "roll_groups_completed_total",
    WorkerMoved: "roll_workers_moved_total",
    NodeAwaited: "roll_nodes_awaited_total",
    ControllerRestarted: "roll_controller_restarts_total",
    RunStarted: "roll_starts_total",
    TaskQuarantined: "roll_tasks_quarantined_total",
    ValidationFinished: "roll_validations_total",
}
_DROPPED = {GroupFailed: "failed", GroupFiltered: "filtered", GroupStale: "stale"}
_READ = (
    *(AttemptRetried, GeneratorReplaced, HackSuspected, ProxyRequestRefused, TokensGenerated),
    *(WeightsPublished, WeightsUpdated, WorkerReplaced),
)
"""Kinds whose fields become labels or values; of the others the number is enough."""
_GENERATOR = "actor_infer"
_AT_ZERO = (
    *(
        ("roll_worker_replacements_total", role)
        for role in (_GENERATOR, "actor_train", "reward worker", "environment worker")
    ),
    *(("roll_updates_total", result) for result in ("applied", "refused")),
    *(("roll_hack_notices_total", sign) for sign in ("identical", "vocabulary", "rise")),
    *(("roll_attempts_retried_total", status) for status in Status if not status.valid),
    ("roll_tokens_sampled_total",),
    ("roll_tokens_discarded_total",),
    ("roll_requests_redispatched_total",),
)
"""Counters that exist before their first event: Prometheus takes the first value of a counter as no increase."""


class JournalCounts:
    """Totals over all events that have been read."""

    def __init__(self) -> None:
        self.position = 0
        """Id of the last event that has been read."""
        self._newest: dict[str, KindCount] = {}
        self._numbers: Counter[str] = Counter()
        self._ended: Counter[Status] = Counter()
        self._labelled: Counter[tuple[str, ...]] = Counter(dict.fromkeys(_AT_ZERO, 0))
        self._sync_s: dict[str, float] = {}

    def newest(self, kind: type[Event]) -> KindCount | None:
        """The newest event of this kind; None if there is none."""
        return self._newest.get(kind.__name__)

    def read(self, reader: Reader) -> None:
        """Add the events that were written since the last call."""
        tally = reader.tally(after=self.position)
        for kind in _READ:
            if kind.__name__ in tally.kinds:
                for entry in reader.events(kind, after=self.position):
                    if entry.id <= tally.position:
                        self._add(entry.event)
        self._newest |= tally.kinds
        self._numbers.update({kind: count.number for kind, count in tally.kinds.items()})
        self._ended.update(tally.ended)
        self.position = tally.position

    def add_to(self, scrape: Scrape) -> None:
        """Add the counters to a scrape."""
        for kind, name in _COUNTED.items():
            scrape.set(name, self._numbers[kind.__name__])
        for kind, cause in _DROPPED.items():
            scrape.set("roll_groups_dropped_total", self._numbers[kind.__name__], cause)
        for status in Status:
            scrape.set("roll_attempts_total", self._ended[status], status.value)
        for (name, *labels), number in self._labelled.items():
            scrape.set(name, number, *labels)
        for part, seconds in self._sync_s.items():
            scrape.set("roll_weight_sync_seconds", seconds, part)
        if (published := self.newest(WeightsPublished)) is not None and published.version is not None:
            scrape.set("roll_weights_version", published.version)
        if (saved := self.newest(CheckpointSaved)) is not None and saved.step is not None:
            scrape.set("roll_checkpoint_step", saved.step)
            scrape.set("roll_checkpoint_timestamp_seconds", saved.time)

    def _add(self, event: Event) -> None:
        match event:
            case AttemptRetried(status=status):
                self._count("roll_attempts_retried_total", status.value)
            case GeneratorReplaced():
                self._count("roll_worker_replacements_total", _GENERATOR)
            case WorkerReplaced(worker=worker):
                self._count("roll_worker_replacements_total", worker.rpartition(" ")[0] or worker)
            case HackSuspected(sign=sign):
                self._count("roll_hack_notices_total", sign)
            case ProxyRequestRefused(status=status, count=count):
                self._count("roll_proxy_refusals_total", str(status), number=count)
            case WeightsUpdated(refused=refused):
                self._count("roll_updates_total", "refused" if refused else "applied")
            case WeightsPublished(seconds=seconds):
                self._sync_s = dict(seconds)
            case TokensGenerated():
                self._count("roll_tokens_sampled_total", number=event.tokens)
                self._count("roll_tokens_discarded_total", number=event.discarded)
                self._count("roll_requests_redispatched_total", number=event.redispatched)
            case _:
                pass

    def _count(self, *labelled: str, number: int = 1) -> None:
        self._labelled[labelled] += number


class JournalLag:
    """How far the file is behind the run: polled positions that are not on disk yet."""

    def __init__(self, position: Callable[[], int]) -> None:
        self._position = position
        self._polled: list[tuple[float, int]] = []

    def poll(self, now: float) -> int:
        """Note the position of the run at this time; returns it."""
        position = self._position()
        if not self._polled or self._polled[-1][1] != position:
            self._polled = [*self._polled[-_MOST_POLLED:], (now, position)]
        return position

    def add_to(self, scrape: Scrape, on_disk: int, now: float) -> None:
        """Add the lag behind a run whose events up to `on_disk` are written."""
        position = self.poll(now)
        self._polled = [each for each in self._polled if each[1] > on_disk]
        scrape.set("roll_journal_events_total", position)
        scrape.set("roll_journal_lag_events", position - on_disk)
        scrape.set("roll_journal_lag_seconds", now - self._polled[0][0] if self._polled else 0.0)


_MOST_POLLED = 3600
