"""Groups in flight: their task, their age, what a checkpoint stores of them and what an earlier process left."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from roll.data.mixture import Draw
from roll.rollout.episode.runner import SavedTurn
from roll.serving.policies import ServedVersion
from roll.types import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedAttempt:
    """The state of one sibling before a restart."""

    trajectory: Trajectory | None = None
    """The complete attempt; None if it had not finished."""
    turns: tuple[SavedTurn, ...] = ()
    """The turns of an unfinished attempt."""
    num_failed: int = 0
    """Attempts that had failed."""
    stopped: tuple[int, ...] = ()
    """Sampled tokens of the attempts that had been stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InflightGroup:
    """A group that has a slot."""

    ticket: int
    draw: Draw
    birth: ServedVersion
    """The version served at its admission; a restart does not change it."""
    attempts: dict[int, SavedAttempt] = field(default_factory=dict[int, SavedAttempt])
    """Saved attempts by sibling."""
    observed: bool = False
    """Whether the mixture has already observed its rewards."""
    uses: int = 0
    """Finished steps that trained on it."""
    last: int = 0
    """The last of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawState:
    """A draw in a checkpoint. The task itself is looked up in its source again."""

    source: str
    index: int
    attempt: int
    returned: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InflightGroupState:
    """A group in flight in a checkpoint."""

    ticket: int
    birth: int
    """The version served at its admission."""
    draw: DrawState
    observed: bool
    uses: int = 0
    last: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerState:
    """The scheduler in a checkpoint."""

    mixture: dict[str, Any]
    """From `Mixture.state`."""
    returned: tuple[DrawState, ...] = ()
    """Tasks of groups that came too late, which are drawn before any other."""
    groups: tuple[InflightGroupState, ...] = ()


def draw_state(draw: Draw) -> DrawState:
    """The draw without its task."""
    return DrawState(source=draw.source, index=draw.index, attempt=draw.attempt, returned=draw.returned)


def return_draw(draw: Draw) -> Draw:
    """The draw for another attempt, with different noise: the same noise would make it as slow as before."""
    return replace(draw, returned=draw.returned + 1)
