"""Events of devices of the trainer that generators use while it waits."""

from __future__ import annotations

from dataclasses import dataclass

from roll.journal.event import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicesLent(Event):
    """While the trainer waits, the generators on its devices serve."""

    generators: tuple[int, ...]
    version: int
    digest: str
    """Digest of this version that they attested before they served, as in `WeightsPublished`."""
    seconds: float
    """Of the moves, until they served."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicesReturned(Event):
    """The trainer has its devices back; the requests of the generators on them continue on others."""

    generators: tuple[int, ...]
    num_requests: int
    """Requests that they were working on."""
    num_tokens: int
    """Tokens of these requests so far, which are kept."""
    seconds: float
    """Of the moves, which the trainer waited for."""
