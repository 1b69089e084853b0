"""What the journal holds, as it is written and as it is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, TypeVar

from roll.journal.events import Event
from roll.types import Status, Trajectory, record

if TYPE_CHECKING:
    from roll.types import Floats, Ints

E = TypeVar("E", bound=Event)
IDLE = "idle: "
"""What a worker does begins with this while it waits; the rest names what for."""


@record
class Entry(Generic[E]):
    """One line of the journal."""

    id: int
    time: float
    """Seconds since 1970."""
    event: E


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kept:
    """One trajectory of the journal, and what became of it."""

    id: int
    group: int
    sibling: int
    task: str
    domain: str
    ended: float
    """Seconds since 1970."""
    status: Status
    reward: float | None
    """None for failures, which have none."""
    num_tokens: int
    """Sampled ones; known also when the tokens themselves are pruned, as is the next."""
    num_noted: int
    """Tokens noted on the way to it: more where some of them were void, fewer where it went on from an attempt that is
    kept as well."""
    versions: dict[int, int]
    """How many of its tokens each version sampled."""
    step: int | None
    """The step that trained on it; None if none did, or none that still counts."""
    undone: bool
    """It was trained on, and a rollback took that back."""
    spare: bool
    """Others made up its group."""
    trajectory: Trajectory | None
    """None once its tokens are pruned, and where they were not asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which trajectories to read; None means any."""

    step: int | None = None
    group: int | None = None
    domain: str | None = None
    status: Status | None = None
    last: int | None = None
    """Only so many of the newest."""
    bodies: bool = True
    """False leaves the tokens on disk, which is much faster."""


@record
class Chunk:
    """Part of a reply that is still being sampled; what an attempt goes on from when its process is gone."""

    group: int
    sibling: int
    attempt: int
    turn: int
    context: int
    """crc32 of the ids that the whole reply answers to: whoever asks differently cannot go on from here."""
    ids: Ints
    logprobs: Floats
    version: int
    """Of the weights that sampled all of these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """What one worker did for a while."""

    worker: str
    doing: str
    began: float
    """Seconds since 1970."""
    ended: float


def merge(spans: Iterable[Span]) -> Iterator[Span]:
    """The spans, where one that goes on with the same where its worker's last one ended is part of that."""
    last: dict[str, Span] = {}
    for span in spans:
        before = last.get(span.worker)
        if before is not None and (before.doing, before.ended) == (span.doing, span.began):
            last[span.worker] = replace(before, ended=span.ended)
            continue
        if before is not None:
            yield before
        last[span.worker] = span
    yield from last.values()
