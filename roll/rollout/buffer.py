"""The one queue between generation and training, which also bounds staleness."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from roll.rollout.selection import Priority, Selection, Slot, by_priority, choose_kept, in_order
from roll.serving.policies import ServedVersion
from roll.types import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class StepGroups:
    """The groups of one step."""

    groups: Sequence[Group]
    """Those that are trained for the first time come last."""
    num_reused: int
    """How many of them an earlier step has trained on."""
    late: Sequence[int]
    """Tickets of groups that can no longer be trained on."""
    kept: frozenset[int]
    """Tickets of groups that the next step trains on again."""

    @property
    def leaving(self) -> list[Group]:
        """Groups that this step trains for the last time."""
        return [group for group in self.groups if group.id not in self.kept]


class Buffer:
    """Admission control for groups in flight.

    A group holds a slot from `admit` until `release`, which follows the publication of the weights it helped to train;
    groups leave in the order they were admitted. With s = `max_staleness` and n groups per step there are (s + 1) n
    slots, so a group admitted at version v has at most (s + 1) n - 1 groups ahead of it, every step takes n of them,
    and it is trained at step v + ceil(s) at the latest. Leaving in order of completion instead would let one slow
    group age without bound.

    With `reuse` = k, n / k groups per step are new and the others were trained on by the step before. A kept group
    keeps its slot. `num_slots` then allows a first use k - 1 steps before `max_age`, the greatest age of any use.

    With r more `redundant` slots, or a `priority` other than age, a step takes the groups that come first by priority,
    as `selection` describes. A group that cannot wait and is not taken is late: it can no longer be trained on. There
    are never more than r late groups per step; `take` waits for any others.

        admit()        waits for a free slot                  woken by release(), drop()
        put(group)     never waits
        drop(i)        never waits; its replacement is a new admission at the tail
        take(n)        waits until n groups may leave         woken by put(), drop(), admit()
        release(n)     never waits
    """

    def __init__(
        self,
        *,
        num_slots: int,
        first_ticket: int = 0,
        redundant: int = 0,
        max_age: int = 0,
        reuse: int = 1,
        priority: Priority = "age",
    ) -> None:
        self.num_slots = self._free = num_slots + redundant
        """All slots, redundant ones included."""
        self._redundant, self._reuse = redundant, reuse
        self._priority: Priority = priority
        self._in_order = redundant == 0 and priority == "age"
        self._max_first_age = max(0, max_age - (reuse - 1))
        self._slots: dict[int, Slot] = {}  # by ticket, in order of admission
        self._next_ticket = first_ticket
        self._freed, self._filled = asyncio.Event(), asyncio.Event()
        self.due: Sequence[int] = ()
        """Tickets of the oldest untrained groups, as many as a step waits for; empty if none waits, or if fewer are in
        flight. Replaced, never changed."""

    def resize(self, *, num_slots: int, redundant: int) -> None:
        """Change the number of slots, with `redundant` ones on top; groups in flight keep theirs.

        `max_age` and `redundant` of the constructor are those of the greatest size, and hold for every size.
        """
        self._free += num_slots + redundant - self.num_slots
        self.num_slots, self._redundant = num_slots + redundant, redundant
        self._freed.set()
        self._filled.set()

    @property
    def num_free(self) -> int:
        """Number of free slots."""
        return self._free

    def restore(self, ticket: int, born: int, *, group: Group | None = None, uses: int = 0) -> None:
        """Give a group of an earlier process its slot back; oldest first, and before any admission.

        `uses` steps have trained on its `group`.

        With fewer slots than the earlier process had, the next admissions wait longer.
        """
        of_kind = [slot for slot in self._slots.values() if (slot.uses > 0) == (uses > 0)]
        assert all(ticket > slot.ticket for slot in of_kind), "restored out of order"
        self._free -= 1
        self._slots[ticket] = Slot(ticket, born, group, uses)
        self._next_ticket = max(self._next_ticket, ticket + 1)

    async def admit(self, serving: Callable[[], ServedVersion]) -> tuple[int, ServedVersion]:
        """Wait for a free slot; returns its ticket and the version served then."""
        while self._free <= 0:
            self._freed.clear()
            await self._freed.wait()
        ticket, self._next_ticket = self._next_ticket, self._next_ticket + 1
        self._free -= 1
        birth = serving()
        self._slots[ticket] = Slot(ticket, birth.step)
        self._filled.set()  # `due` changes
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

    async def take(self, num_groups: int, step: int) -> StepGroups:
        """The groups of the step after `step` finished ones.

        The slots of all of them and of late ones stay taken until `release`: a group admitted before the step's weights
        are served would start too old.
        """
        while (selection := self._select(num_groups, step)) is None:
            new = [slot.ticket for slot in self._slots.values() if slot.uses == 0]
            num_needed = num_groups - (len(self._slots) - len(new))
            self.due = new[:num_needed] if len(new) >= num_needed else ()
            self._filled.clear()
            await self._filled.wait()
        self.due = ()
        reused = [slot for slot in self._slots.values() if slot.uses > 0]
        taken = [*reused, *selection.taken]
        for slot in taken:
            slot.uses += 1
        kept = {slot.ticket for slot in choose_kept(taken, num_groups - num_groups // self._reuse, self._reuse)}
        for slot in (*taken, *selection.late):
            if slot.ticket not in kept:
                del self._slots[slot.ticket]
        return StepGroups(
            groups=[slot.group for slot in taken if slot.group is not None],
            num_reused=len(reused),
            late=[slot.ticket for slot in selection.late],
            kept=frozenset(kept),
        )

    async def release(self, num_slots: int) -> None:
        self._free += num_slots
        self._freed.set()

    def ready(self) -> list[Group]:
        """Complete groups that no step has taken yet."""
        slots = list(self._slots.values())  # a copy: warnings are written in another thread
        return [slot.group for slot in slots if slot.group is not None and slot.uses == 0]

    def _select(self, num_groups: int, step: int) -> Selection | None:
        """New groups that a step may take now; None if it must wait."""
        new = [slot for slot in self._slots.values() if slot.uses == 0]
        num_needed = num_groups - (len(self._slots) - len(new))
        if self._in_order:
            return in_order(new, num_needed)
        lives = {slot.ticket: max(0, self._max_first_age - (step - slot.born)) for slot in new}
        per_step = num_groups // self._reuse
        return by_priority(
            new, num_needed, lives, per_step=per_step, redundant=self._redundant, priority=self._priority
        )
