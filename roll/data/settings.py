"""How attempts at the tasks of one source are sampled, and which of their groups are worth training on."""

from __future__ import annotations

from dataclasses import dataclass

from roll.types import Call, Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSettings:
    """Resolved: what the source does not say is the run's."""

    sampling: Sampling
    max_new_tokens: int
    """Most tokens of one reply."""
    filters: tuple[Call, ...]
    """Say why a whole group is not worth training on."""
