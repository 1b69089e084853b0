"""Records that the journal stores, as they are written and read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, TypeVar

from roll.journal.events import Event
from roll.types import Status, Trajectory, record

if TYPE_CHECKING:
    from roll.types import Floats, Ints

E = TypeVar("E", bound=Event)
IDLE = "idle: "
"""Prefix of an activity in which a worker waits; the rest names what it waits for."""


@record
class JournalEntry(Generic[E]):
    """One event with its id and time."""

    id: int
    time: float
    """Seconds since 1970."""
    event: E


@dataclass(frozen=True, slots=True, kw_only=True)
class KindCount:
    """Number of events of one kind, and the newest of them."""

    number: int
    id: int
    time: float
    """Seconds since 1970."""
    step: int | None
    """None for kinds without a step."""
    version: int | None
    """None for kinds without a version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalTally:
    """What a journal has gained after a position, without reading the events themselves."""

    position: int
    """Id of the last event."""
    kinds: Mapping[str, KindCount]
    """By the name of the event's class, except ended attempts."""
    ended: Mapping[Status, int]
    """Ended attempts by status."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredTrajectory:
    """One trajectory of the journal, and the step that trained on it."""

    id: int
    group: int
    sibling: int
    task: str
    domain: str
    ended: float
    """Seconds since 1970."""
    status: Status
    reward: float | None
    """None for failed attempts, which have no reward."""
    num_tokens: int
    """Sampled tokens. Like `num_progress`, known also after the tokens themselves are pruned."""
    num_progress: int
    """Tokens recorded as progress of this attempt: more than `num_tokens` where some of them were void, fewer where it
    continued an attempt that is stored as well."""
    versions: dict[int, int]
    """Number of its tokens by the version that sampled them."""
    step: int | None
    """Last step that trained on it; None if none did, or none that still counts."""
    rolled_back: bool
    """Steps trained on it, and rollbacks undid all of them."""
    surplus: bool
    """Its group was complete without it."""
    trajectory: Trajectory | None
    """None once its tokens are pruned, and where the query excludes bodies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryQuery:
    """Which trajectories to read; None means any."""

    id: int | None = None
    step: int | None = None
    group: int | None = None
    domain: str | None = None
    status: Status | None = None
    last: int | None = None
    """Only this many of the newest."""
    bodies: bool = True
    """False leaves the tokens on disk, which is much faster."""


@record
class Chunk:
    """Part of a response that is still being sampled, from which the attempt continues if its process dies."""

    group: int
    sibling: int
    attempt: int
    turn: int
    context: int
    """crc32 of the prompt ids of the response: a request with another prompt cannot continue from here."""
    ids: Ints
    logprobs: Floats
    version: int
    """Version of the weights that sampled all of these tokens."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenValues:
    """What a step computed for the sampled tokens of an attempt, in their order; NaN where it did not train on them."""

    step: int
    group: int
    sibling: int
    advantages: Floats
    trainer_logprobs: Floats | None
    """Before the step's first update; None if the step does not compute them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivitySpan:
    """One activity of one worker between two times, in seconds since 1970."""

    worker: str
    activity: str
    start: float
    end: float


def merge(spans: Iterable[ActivitySpan]) -> Iterator[ActivitySpan]:
    """The spans, joined where a worker's next span continues the same activity without a gap."""
    last: dict[str, ActivitySpan] = {}
    for span in spans:
        before = last.get(span.worker)
        if before is not None and (before.activity, before.end) == (span.activity, span.start):
            last[span.worker] = replace(before, end=span.end)
            continue
        if before is not None:
            yield before
        last[span.worker] = span
    yield from last.values()
