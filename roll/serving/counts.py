"""Tokens and answers, counted as they come."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Tally:
    """What the router has seen since it was last asked."""

    tokens: int = 0
    """Sampled, whatever became of them."""
    aborted: int = 0
    """Of these, tokens of attempts that were broken off, and of answers that came too late."""
    late: int = 0
    """Answers that nobody was waiting for."""
    bad: int = 0
    """Answers that cannot be true."""
    redispatched: int = 0
