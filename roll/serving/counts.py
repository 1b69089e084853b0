"""Counts of generated tokens and of generator outputs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class GenerationCounts:
    """Counts of one router since they were last reset."""

    tokens: int = 0
    """Sampled tokens, including those that were discarded later."""
    aborted: int = 0
    """Tokens among these of cancelled attempts and of late outputs."""
    late: int = 0
    """Outputs for requests that are no longer in flight."""
    bad: int = 0
    """Malformed outputs: too many tokens, or missing or non-finite logprobs."""
    redispatched: int = 0
    """Requests sent to another generator."""
