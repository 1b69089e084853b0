"""Which complete groups a step takes, so that every group is trained within its bound or dropped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from roll.types import Group

Priority: TypeAlias = Literal["age", "difficulty", "value"]


@dataclass(slots=True)
class Slot:
    """A group in flight, or one that later steps may train on again."""

    ticket: int
    born: int
    """Step of the weights served at its admission."""
    group: Group | None = None
    """None until the group is complete."""
    uses: int = 0
    """Steps that have trained on the group."""
    last: int = 0
    """The last of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayLimits:
    """How many groups are trained on again, and how often."""

    max_uses: int = 1
    """Most steps that train on a group."""
    num_groups: int = 0
    """Groups of each step that earlier ones have trained on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The slots of a step, and those of groups that are late."""

    taken: Sequence[Slot]
    late: Sequence[Slot]


def in_order(slots: Sequence[Slot], num_needed: int) -> Selection | None:
    """The oldest `num_needed` groups; None if one of them is not complete. `slots` are in order of admission."""
    oldest = slots[:num_needed]
    complete = len(oldest) == num_needed and all(slot.group is not None for slot in oldest)
    return Selection(taken=oldest, late=()) if complete else None


def by_priority(
    slots: Sequence[Slot],
    num_needed: int,
    lives: Mapping[int, int],
    *,
    per_step: int,
    redundant: int,
    priority: Priority,
) -> Selection | None:
    """The complete groups that come first by `priority`; None if the step must wait.

    `lives` has the steps that each ticket can still wait for, 0 if this step is its last. Every later step takes at
    least `per_step` groups. Of the groups with at most j steps left, j * `per_step` may wait and `redundant` may be
    lost; this step takes the others, whatever their priority. `docs/scheduling.md` proves that it always can.
    """
    excess = [
        sum(lives[slot.ticket] <= life for slot in slots) - life * per_step
        for life in range(max(lives.values(), default=0) + 1)
    ]
    slack = max(redundant, max(excess) - num_needed)  # more than `redundant` only after that was lowered
    complete = sorted(
        (slot for slot in slots if slot.group is not None),
        key=lambda slot: (lives[slot.ticket] > 0, _RANKS[priority](slot), slot.born, slot.ticket),
    )
    taken = [slot for slot in complete if lives[slot.ticket] == 0][:num_needed]
    for life, number in enumerate(excess):
        tickets = {slot.ticket for slot in taken}
        due = [slot for slot in complete if lives[slot.ticket] <= life and slot.ticket not in tickets]
        num_missing = number - slack - sum(lives[ticket] <= life for ticket in tickets)
        if num_missing > len(due):
            return None
        taken += due[: max(0, num_missing)]
    tickets = {slot.ticket for slot in taken}
    taken += [slot for slot in complete if slot.ticket not in tickets][: num_needed - len(taken)]
    if len(taken) < num_needed:
        return None
    tickets = {slot.ticket for slot in taken}
    return Selection(
        taken=taken, late=[slot for slot in slots if lives[slot.ticket] == 0 and slot.ticket not in tickets]
    )


def choose_replayed(trained: Iterable[Slot], number: int, priority: Priority) -> list[Slot]:
    """At most `number` trained groups that a step trains on again.

    By age, those of the step before come first, of them the least used ones, then the youngest.
    """

    def rank(slot: Slot) -> tuple[float, ...]:
        by_priority = 0.0 if priority == "age" else _RANKS[priority](slot)
        return by_priority, -slot.last, slot.uses, -slot.born, slot.ticket

    return sorted(trained, key=rank)[:number]


def _rewards(slot: Slot) -> list[float]:
    assert slot.group is not None, "only complete groups are compared"
    return [trajectory.reward for trajectory in slot.group.trajectories]


def _distance_from_half(slot: Slot) -> float:
    return abs(float(np.mean(_rewards(slot))) - 0.5)


def _negative_spread(slot: Slot) -> float:
    return -float(np.std(_rewards(slot)))


_RANKS: dict[Priority, Callable[[Slot], float]] = {
    "age": lambda slot: float(slot.born),
    "difficulty": _distance_from_half,
    "value": _negative_spread,
}
"""Lower values are taken first."""
