"""The one queue between generation and training, which also bounds staleness."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from roll.serving.policies import ServedVersion
from roll.types import Group


@dataclass(slots=True)
class _Slot:
    """A slot and the group that holds it."""

    born: int
    """Step of the weights served at its admission."""
    group: Group | None = None
    """None until the group is complete."""


class Buffer:
    """Admission control for groups in flight.

    A group holds a slot from `admit` until `release`, which follows the publication of the weights it helped to train;
    groups leave in the order they were admitted. With s = `max_staleness` and n groups per step there are (s + 1) n
    slots, so a group admitted at version v has at most (s + 1) n - 1 groups ahead of it, every step takes n of them,
    and it is trained at step v + ceil(s) at the latest. Leaving in order of completion instead would let one slow
    group age without bound.

    With r more `redundant` slots, a step takes the groups that complete first, preferring those admitted at older
    weights. A group that is `max_age` steps old and not taken is late: it can no longer be trained on. There are never
    more than r late groups per step; `take` waits for any others.

        admit()        waits for a free slot                  woken by release(), drop()
        put(group)     never waits
        drop(i)        never waits; its replacement is a new admission at the tail
        take(n)        waits until n groups may leave         woken by put(), drop()
        release(n)     never waits
    """

    def __init__(self, *, num_slots: int, first_ticket: int = 0, redundant: int = 0, max_age: int = 0) -> None:
        self.num_slots = self._free = num_slots + redundant
        """All slots, redundant ones included."""
        self._redundant, self._max_age = redundant, max_age
        self._slots: dict[int, _Slot] = {}  # by ticket, in order of admission
        self._next_ticket = first_ticket
        self._freed, self._filled = asyncio.Event(), asyncio.Event()

    @property
    def num_free(self) -> int:
        """Number of free slots."""
        return self._free

    def restore(self, ticket: int, born: int) -> None:
        """Give a group of an earlier process its slot back; oldest first, and before any admission."""
        assert self._free > 0 and all(ticket > other for other in self._slots), "restored out of order"
        self._free -= 1
        self._slots[ticket] = _Slot(born)
        self._next_ticket = max(self._next_ticket, ticket + 1)

    async def admit(self, serving: Callable[[], ServedVersion]) -> tuple[int, ServedVersion]:
        """Wait for a free slot; returns its ticket and the version served then."""
        while self._free <= 0:
            self._freed.clear()
            await self._freed.wait()
        ticket, self._next_ticket = self._next_ticket, self._next_ticket + 1
        self._free -= 1
        birth = serving()
        self._slots[ticket] = _Slot(birth.step)
        return ticket, birth

    async def put(self, group: Group) -> None:
        slot = self._slots.get(group.id)
        assert slot is not None and slot.group is None, f"group {group.id} was not admitted, or put twice"
        slot.group = group
        self._filled.set()

    async def drop(self, ticket: int) -> None:
        """Drop a group and free its slot."""
        del self._slots[ticket]
        self._free += 1
        self._freed.set()
        self._filled.set()

    async def take(self, num_groups: int, step: int) -> tuple[list[Group], list[int]]:
        """The groups of the step after `step` finished ones, and the tickets of groups that are late.

        The slots of both stay taken until `release`: a group admitted before the step's weights are served would start
        too old.
        """
        while (choice := self._choose(num_groups, step)) is None:
            self._filled.clear()
            await self._filled.wait()
        groups, late = choice
        for ticket in (*(group.id for group in groups), *late):
            del self._slots[ticket]
        return groups, late

    async def release(self, num_slots: int) -> None:
        self._free += num_slots
        self._freed.set()

    def ready(self) -> list[Group]:
        """Complete groups that no step has taken yet."""
        slots = list(self._slots.values())  # a copy: warnings are written in another thread
        return [slot.group for slot in slots if slot.group is not None]

    def _choose(self, num_groups: int, step: int) -> tuple[list[Group], list[int]] | None:
        """Groups that a step may take now and tickets that are late; None if the step must wait."""
        if self._redundant == 0:
            oldest = _complete(list(self._slots.values())[:num_groups])
            return (oldest, []) if len(oldest) == num_groups else None
        groups = _complete(sorted(self._slots.values(), key=lambda slot: slot.born))[:num_groups]
        chosen = {group.id for group in groups}
        late = [
            ticket for ticket, slot in self._slots.items() if ticket not in chosen and step - slot.born >= self._max_age
        ]
        return (groups, late) if len(groups) == num_groups and len(late) <= self._redundant else None


def _complete(slots: Sequence[_Slot]) -> list[Group]:
    return [slot.group for slot in slots if slot.group is not None]
