"""Calls that wait for workers, so that a run can name the workers that it waits for."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from roll.cluster.process_state import describe_state, is_stopped

_LONG_POLL_S = 2.0
"""Age below which a call is not reported: calls for the outputs of a generator take up to one second without any."""
_SHOWN = 4
_SEQUENTIAL = ("start",)
"""Phases that consist of many calls one after another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCall:
    """One call without a reply yet."""

    worker: str
    """Role and rank."""
    method: str
    since: float
    """Its start, as `time.monotonic()`."""
    pid: int = 0
    """Process id of the worker; 0: unknown, as before its start."""
    host: str = ""
    """Name of another machine that the worker runs on; empty: this one."""

    @property
    def age_s(self) -> float:
        return time.monotonic() - self.since

    @property
    def state(self) -> str:
        """Why its process makes no progress; empty if that is unknown."""
        return describe_state(self.pid) if self.pid and not self.host else ""

    def __str__(self) -> str:
        process = f" (pid {self.pid}{self.host and f' on {self.host}'})" if self.pid else ""
        return f"{self.worker}{process} for {self.age_s:.0f} s in {self.method}{self.state and f': {self.state}'}"


@runtime_checkable
class HasPendingCalls(Protocol):
    """A service that lists its pending calls. It is called from another thread."""

    def pending_calls(self) -> Sequence[PendingCall]: ...


class PendingStarts:
    """Starts of workers that are in progress."""

    def __init__(self) -> None:
        self._calls: dict[object, PendingCall] = {}

    @contextmanager
    def record(self, worker: str) -> Generator[None]:
        """The worker starts inside this block."""
        key = object()
        self._calls[key] = PendingCall(worker=worker, method="its start", since=time.monotonic())
        try:
            yield
        finally:
            del self._calls[key]

    def pending_calls(self) -> list[PendingCall]:
        return list(self._calls.values())  # a copy: this runs in another thread


def stopped_workers(services: Iterable[HasPendingCalls]) -> str:
    """The workers of this machine that calls wait for and whose process is stopped; empty if none is."""
    calls = [call for service in services for call in service.pending_calls()]
    return ", ".join(sorted({call.worker for call in calls if call.pid and not call.host and is_stopped(call.pid)}))


def describe_pending(services: Iterable[HasPendingCalls], phase: str, elapsed_s: float) -> str:
    """The workers that a phase has been waiting for: the stopped ones, and those of calls as old as half the phase.

    In the start of a run, which calls one worker after another, those of all calls except long polls.
    """
    calls = [call for service in services for call in service.pending_calls()]
    least_s = max(0.0 if phase in _SEQUENTIAL else elapsed_s / 2, _LONG_POLL_S)
    slow = [call for call in calls if call.state or call.age_s >= least_s]
    by_worker = {call.worker: call for call in sorted(slow, key=lambda call: call.age_s)}  # the oldest of each
    lines = [str(call) for call in sorted(by_worker.values(), key=lambda call: (not call.state, call.since))]
    others = f", and {len(lines) - _SHOWN} others" if len(lines) > _SHOWN else ""
    return f"waiting for {', '.join(lines[:_SHOWN])}{others}" if lines else ""
