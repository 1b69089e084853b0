"""Counts of generated tokens and generator outputs, and of attempts that wait: the reasons why generators are idle."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from roll.journal.records import IDLE
from roll.journal.store import Activity


@dataclass(slots=True)
class GenerationCounts:
    """Counts of one router since they were last reset."""

    tokens: int = 0
    """Sampled tokens, including those that were discarded later."""
    unrecorded: int = 0
    """Tokens among these of attempts that are not in the journal."""
    discarded: int = 0
    """Tokens among these of late outputs, and after the end of their response."""
    late: int = 0
    """Outputs for requests that are no longer in flight."""
    bad: int = 0
    """Malformed outputs: too many tokens, or missing or non-finite logprobs."""
    redispatched: int = 0
    """Requests sent to another generator."""


class IdleTime:
    """Seconds in which generators had no request."""

    def __init__(self) -> None:
        self._since: dict[int, float] = {}
        """By rank of the idle generators."""
        self._seconds = 0.0

    def set(self, rank: int, *, idle: bool, now: float) -> None:
        """From now on this generator is idle, or is not."""
        began = self._since.pop(rank, None)
        if began is not None:
            self._seconds += now - began
        if idle:
            self._since[rank] = now

    def drain(self, now: float) -> float:
        """Idle seconds of all generators since the last call."""
        for rank in list(self._since):
            self.set(rank, idle=True, now=now)
        seconds, self._seconds = self._seconds, 0.0
        return seconds


class GeneratorActivities:
    """What every generator of one router does, as spans of the journal and as idle time."""

    def __init__(
        self, reasons: IdleReasons, busy: Callable[[int], bool], absent: Collection[int], lent: Collection[int]
    ) -> None:
        """`busy` tells whether a generator has requests, by rank; `absent` is read whenever something changes.

        An absent one among `lent` has its device back later.
        """
        self._reasons, self._busy, self._absent, self._lent = reasons, busy, absent, lent
        self._activities: Sequence[Activity] = ()
        self._recording_soon = False
        self.held = True
        """Whether a change of version is the reason why generators are idle."""
        self.idle_time = IdleTime()

    def start(self, activities: Sequence[Activity]) -> None:
        """Record in these from now on, by rank."""
        self._activities = activities
        self._reasons.subscribe(self._record_idle_soon)

    def record(self, rank: int) -> None:
        """Record what this generator does now."""
        busy, absent = self._busy(rank), rank in self._absent
        self.idle_time.set(rank, idle=not busy and not absent, now=asyncio.get_running_loop().time())
        if not self._activities:
            return
        if absent and rank in self._lent:
            self._activities[rank].enter(f"{IDLE}the trainer")
            return
        if absent:
            self._activities[rank].close()
            return
        reason = "version change" if self.held else self._reasons.reason()
        self._activities[rank].enter("generate" if busy else IDLE + reason)

    def record_idle(self) -> None:
        """Record the reason of every idle generator."""
        self._recording_soon = False
        for rank in range(len(self._activities)):
            if not self._busy(rank):
                self.record(rank)

    def _record_idle_soon(self) -> None:
        """Record idle reasons once per pass of the event loop, however often they change in it."""
        if not self._recording_soon:
            self._recording_soon = True
            asyncio.get_running_loop().call_soon(self.record_idle)


class IdleReasons:
    """Numbers of attempts that wait for environments and for rewards."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[], None]] = []
        self._by_name = {name: WaitCounter(self._listeners) for name in ("environments", "rewards")}

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever a number changes from or to zero."""
        self._listeners.append(changed)

    def waiting_for(self, name: str) -> WaitCounter:
        """A context manager: one attempt waits for `name` inside its block."""
        return self._by_name[name]

    def add(self, name: str, change: int) -> None:
        """Add `change` to the number of attempts that wait for `name`."""
        self._by_name[name].add(change)

    def reason(self) -> str:
        """Why no requests arrive: the first thing that attempts wait for, or else the slots that training frees."""
        return next(iter(self.counts()), "slots")

    def counts(self) -> dict[str, int]:
        """Numbers of waiting attempts by the thing they wait for, without zeros."""
        return {name: wait.number for name, wait in self._by_name.items() if wait.number}


class WaitCounter:
    """Number of attempts that wait for one thing: each inside a `with` block of this one instance.

    The listeners are called when the number changes from or to zero.
    """

    __slots__ = ("_listeners", "number")

    def __init__(self, listeners: Sequence[Callable[[], None]]) -> None:
        self.number, self._listeners = 0, listeners

    def add(self, change: int) -> None:
        """Add `change` to the number, where no block holds the wait."""
        self.number += change
        if not self.number or self.number == change:
            for changed in self._listeners:
                changed()

    def __enter__(self) -> None:
        self.number += 1
        if self.number == 1:
            for changed in self._listeners:
                changed()

    def __exit__(self, *_: object) -> None:
        self.number -= 1
        if not self.number:
            for changed in self._listeners:
                changed()
