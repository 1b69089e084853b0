"""Groups under way: what they attempt, since when, and what earlier processes left of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from roll.data.mixture import Draw
from roll.rollout.episode.runner import Said
from roll.types import ServedVersion, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What there is of one sibling from before a restart."""

    whole: Trajectory | None = None
    """It had come to a good end."""
    turns: tuple[Said, ...] = ()
    """Or as far as it had come."""
    num_failed: int = 0
    """Attempts that had failed before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A group with a slot."""

    ticket: int
    draw: Draw
    birth: ServedVersion
    """What was served when it was admitted; a restart does not make it younger."""
    past: dict[int, Past] = field(default_factory=dict[int, Past])
    """By sibling."""
    observed: bool = False
    """The mixture knows its rewards already."""


def given_back(draw: Draw) -> Draw:
    """A draw to be made again, with other noise: with the same it would be as slow as before."""
    return replace(draw, returned=draw.returned + 1)
