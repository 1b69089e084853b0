"""The one queue between generation and training, and the one place where staleness is bounded."""

from __future__ import annotations

import asyncio

from roll.types import Group


class Buffer:
    """Admission control for groups under way.

    A group holds a slot from `admit` until `release`, which follows the publication of the weights it helped to train;
    groups leave in the order they were admitted. With s = `max_staleness` and n groups a step there are (s + 1) n
    slots, so a group admitted at version v has at most (s + 1) n - 1 groups ahead of it, every step takes n of them,
    and it is trained at step v + ceil(s) at the latest. Leaving in order of completion instead would let one slow
    group age without bound.

        admit()        waits for a free slot                  woken by release(), drop()
        put(i, group)  never waits
        drop(i)        never waits; its replacement is a new admission at the tail
        take(n)        waits until the n oldest were put      woken by put(), drop()
        release(n)     never waits
    """

    def __init__(self, *, num_slots: int, first_ticket: int = 0) -> None:
        self._free = num_slots
        self._held: dict[int, Group | None] = {}  # by ticket, in order of admission; None until put
        self._next_ticket = first_ticket
        self._changed = asyncio.Condition()

    async def admit(self) -> int:
        """A ticket, once there is a slot for it."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._free > 0)
            ticket, self._next_ticket = self._next_ticket, self._next_ticket + 1
            self._free -= 1
            self._held[ticket] = None
            return ticket

    async def put(self, group: Group) -> None:
        async with self._changed:
            assert self._held.get(group.id, group) is None, f"group {group.id} was not admitted, or put twice"
            self._held[group.id] = group
            self._changed.notify_all()

    async def drop(self, ticket: int) -> None:
        """Give a group up: its slot is free, and it is nobody's any more."""
        async with self._changed:
            del self._held[ticket]
            self._free += 1
            self._changed.notify_all()

    async def take(self, num_groups: int) -> list[Group]:
        """The oldest groups, for one step. Their slots stay taken until `release`."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self._ready(num_groups)) == num_groups)
            groups = self._ready(num_groups)
            for group in groups:
                del self._held[group.id]
            return groups

    async def release(self, num_groups: int) -> None:
        async with self._changed:
            self._free += num_groups
            self._changed.notify_all()

    def _ready(self, num_groups: int) -> list[Group]:
        return [group for group in list(self._held.values())[:num_groups] if group is not None]
