"""The one queue between generation and training, and the one place where staleness is bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from roll.types import Group, ServedVersion


@dataclass(slots=True)
class _Held:
    """A group under way."""

    born: int
    """Steps that the weights served at its admission had seen."""
    group: Group | None = None
    """None until put."""


class Buffer:
    """Admission control for groups under way.

    A group holds a slot from `admit` until `release`, which follows the publication of the weights it helped to train;
    groups leave in the order they were admitted. With s = `max_staleness` and n groups a step there are (s + 1) n
    slots, so a group admitted at version v has at most (s + 1) n - 1 groups ahead of it, every step takes n of them,
    and it is trained at step v + ceil(s) at the latest. Leaving in order of completion instead would let one slow
    group age without bound.

    With r `redundant` slots more, the first to be complete win, those born first before others. What is `max_age`
    steps old by then and not taken is late: it can no longer be trained on. There are never more than r late groups
    a step; for the others, `take` waits.

        admit()        waits for a free slot                  woken by release(), drop()
        put(group)     never waits
        drop(i)        never waits; its replacement is a new admission at the tail
        take(n)        waits until n groups may leave         woken by put(), drop()
        release(n)     never waits
    """

    def __init__(self, *, num_slots: int, first_ticket: int = 0, redundant: int = 0, max_age: int = 0) -> None:
        self._free = num_slots + redundant
        self._redundant, self._max_age = redundant, max_age
        self._held: dict[int, _Held] = {}  # by ticket, in order of admission
        self._next_ticket = first_ticket
        self._freed, self._filled = asyncio.Event(), asyncio.Event()

    @property
    def num_free(self) -> int:
        """Slots that nobody holds."""
        return self._free

    def restore(self, ticket: int, born: int) -> None:
        """A group that holds its slot since an earlier process; oldest first, and before any admission."""
        assert self._free > 0 and all(ticket > other for other in self._held), "restored out of order"
        self._free -= 1
        self._held[ticket] = _Held(born)
        self._next_ticket = max(self._next_ticket, ticket + 1)

    async def admit(self, serving: Callable[[], ServedVersion]) -> tuple[int, ServedVersion]:
        """A ticket, once there is a slot for it, and what is served then."""
        while self._free <= 0:
            self._freed.clear()
            await self._freed.wait()
        ticket, self._next_ticket = self._next_ticket, self._next_ticket + 1
        self._free -= 1
        birth = serving()
        self._held[ticket] = _Held(birth.step)
        return ticket, birth

    async def put(self, group: Group) -> None:
        held = self._held.get(group.id)
        assert held is not None and held.group is None, f"group {group.id} was not admitted, or put twice"
        held.group = group
        self._filled.set()

    async def drop(self, ticket: int) -> None:
        """Give a group up: its slot is free, and it is nobody's any more."""
        del self._held[ticket]
        self._free += 1
        self._freed.set()
        self._filled.set()

    async def take(self, num_groups: int, step: int) -> tuple[list[Group], list[int]]:
        """The groups of the step after `step` finished ones, and the tickets that are late for good.

        The slots of both stay taken until `release`: what starts before the step's weights are served would be born too
        old.
        """
        while (choice := self._choice(num_groups, step)) is None:
            self._filled.clear()
            await self._filled.wait()
        groups, late = choice
        for ticket in (*(group.id for group in groups), *late):
            del self._held[ticket]
        return groups, late

    async def release(self, num_slots: int) -> None:
        self._free += num_slots
        self._freed.set()

    def ready(self) -> list[Group]:
        """Complete groups that no step has taken yet."""
        return [held.group for held in self._held.values() if held.group is not None]

    def _choice(self, num_groups: int, step: int) -> tuple[list[Group], list[int]] | None:
        """What a step may take now, if it may."""
        if self._redundant == 0:
            oldest = _complete(list(self._held.values())[:num_groups])
            return (oldest, []) if len(oldest) == num_groups else None
        groups = _complete(sorted(self._held.values(), key=lambda held: held.born))[:num_groups]
        chosen = {group.id for group in groups}
        late = [
            ticket for ticket, held in self._held.items() if ticket not in chosen and step - held.born >= self._max_age
        ]
        return (groups, late) if len(groups) == num_groups and len(late) <= self._redundant else None


def _complete(held: Sequence[_Held]) -> list[Group]:
    return [each.group for each in held if each.group is not None]
