"""Sampling parameters and group filters of one task source."""

from __future__ import annotations

from dataclasses import dataclass

from roll.types import Sampling, Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSettings:
    """Settings of a source, with the run's values as defaults."""

    sampling: Sampling
    max_new_tokens: int
    """Most tokens per reply."""
    filters: tuple[Spec, ...]
    """Select groups that are replaced instead of trained on."""
