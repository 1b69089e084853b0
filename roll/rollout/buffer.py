"""The one queue between generation and training, which also bounds staleness."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from roll.rollout.selection import Priority, ReplayLimits, Selection, Slot, by_priority, choose_replayed, in_order
from roll.serving.policies import ServedVersion
from roll.types import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class StepGroups:
    """The groups of one step."""

    groups: Sequence[Group]
    """Those that are trained for the first time come last."""
    num_reused: int
    """How many of them earlier steps have trained on."""
    late: Sequence[int]
    """Tickets of groups that can no longer be trained on."""
    usable: frozenset[int]
    """Tickets of trained groups, of this step or earlier ones, that later steps may train on again."""
    num_freed: int
    """Slots that are free once the weights of this step are published."""

    @property
    def metrics(self) -> dict[str, float]:
        """Numbers of groups that are trained on again, now or later; empty if all are used once."""
        if not self.num_reused and not self.usable:
            return {}
        return {"reuse/groups": float(self.num_reused), "reuse/usable": float(len(self.usable))}


class Buffer:
    """Admission control for groups in flight.

    A group holds a slot from `admit` until `release`, which follows the publication of the weights it helped to train;
    groups leave in the order they were admitted. With s = `max_staleness` and n groups per step there are (s + 1) n
    slots, so a group admitted at version v has at most (s + 1) n - 1 groups ahead of it, every step takes n of them,
    and it is trained at step v + ceil(s) at the latest. Leaving in order of completion instead would let one slow
    group age without bound.

    With `replay`, a step trains again on q groups of earlier steps, and m = n - q are new. A trained group stays
    usable for `max_uses` steps and up to `max_age`, the greatest age of any use. It holds no slot, but the q groups of
    the next step hold one each. `num_slots` allows a first use ceil(q / m) steps before `max_age`. So the groups first
    used in the last ceil(q / m) steps, at least q, are always usable.

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
        replay: ReplayLimits | None = None,
        priority: Priority = "age",
    ) -> None:
        self.num_slots = self._free = num_slots + redundant
        """All slots, redundant ones included."""
        self._redundant, self._max_age, self.replay = redundant, max_age, replay or ReplayLimits()
        self._priority: Priority = priority
        self._in_order = redundant == 0 and priority == "age"
        self._slots: dict[int, Slot] = {}  # untrained groups by ticket, in order of admission
        self._trained: dict[int, Slot] = {}  # usable ones, by ticket
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

    def num_missing(self, step: int) -> int:
        """Groups that the step after `step` finished ones takes new because too few can be trained on again."""
        return self.replay.num_groups - min(self.replay.num_groups, len(self._usable(step)))

    def oldest_use(self, saved: int) -> int | None:
        """First step whose groups a run that resumes after `saved` finished ones may need; None if it needs none."""
        return max(1, saved + 1 - self._max_age) if self.replay.num_groups else None

    def restore(self, ticket: int, born: int) -> None:
        """Give an untrained group of an earlier process its slot back; oldest first, and before any admission.

        With fewer slots than the earlier process had, the next admissions wait longer.
        """
        assert all(ticket > earlier for earlier in self._slots), "restored out of order"
        self._free -= 1
        self._slots[ticket] = Slot(ticket, born)
        self._next_ticket = max(self._next_ticket, ticket + 1)

    def restore_trained(self, slot: Slot, step: int) -> bool:
        """Make a group usable again that an earlier process has trained on; before any admission.

        False if it is not usable after `step` finished ones, because a limit is lower than before.
        """
        self._next_ticket = max(self._next_ticket, slot.ticket + 1)
        if not self._may_use(slot, step):
            return False
        self._trained[slot.ticket] = slot
        self._free -= len(self._trained) <= self.replay.num_groups
        return True

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
        replayed, num_new = self._choose_replayed(num_groups, step), num_groups - self.replay.num_groups
        num_needed = num_groups - len(replayed)
        while (selection := self._select(num_needed, num_new, step)) is None:
            tickets = list(self._slots)
            self.due = tickets[:num_needed] if len(tickets) >= num_needed else ()
            self._filled.clear()
            await self._filled.wait()
        self.due = ()
        taken = [*replayed, *selection.taken]
        for slot in (*selection.taken, *selection.late):
            del self._slots[slot.ticket]
        for slot in taken:
            slot.uses, slot.last = slot.uses + 1, step + 1
            self._trained[slot.ticket] = slot
        self._trained = {slot.ticket: slot for slot in self._usable(step + 1)}
        return StepGroups(
            groups=[slot.group for slot in taken if slot.group is not None],
            num_reused=len(replayed),
            late=[slot.ticket for slot in selection.late],
            usable=frozenset(self._trained),
            num_freed=len(taken) + len(selection.late) - min(self.replay.num_groups, len(self._trained)),
        )

    async def release(self, num_slots: int) -> None:
        self._free += num_slots
        self._freed.set()

    def ready(self) -> list[Group]:
        """Complete groups that no step has taken yet."""
        slots = list(self._slots.values())  # a copy: warnings are written in another thread
        return [slot.group for slot in slots if slot.group is not None]

    def _may_use(self, slot: Slot, step: int) -> bool:
        """Whether the step after `step` finished ones may train on this trained group."""
        return slot.uses < self.replay.max_uses and step - slot.born <= self._max_age

    def _usable(self, step: int) -> list[Slot]:
        return [slot for slot in self._trained.values() if self._may_use(slot, step)]

    def _choose_replayed(self, num_groups: int, step: int) -> list[Slot]:
        num_new = num_groups - self.replay.num_groups
        always = (
            self.replay.num_groups == (self.replay.max_uses - 1) * num_new
        )  # every group is used `reuse` times, one after another
        return choose_replayed(self._usable(step), self.replay.num_groups, "age" if always else self._priority)

    def _select(self, num_needed: int, num_new: int, step: int) -> Selection | None:
        """New groups that a step may take now; None if it must wait. Every later step takes at least `num_new`."""
        new = list(self._slots.values())
        if self._in_order:
            return in_order(new, num_needed)
        max_first_age = max(0, self._max_age - math.ceil(self.replay.num_groups / num_new))
        lives = {slot.ticket: max(0, max_first_age - (step - slot.born)) for slot in new}
        return by_priority(new, num_needed, lives, per_step=num_new, redundant=self._redundant, priority=self._priority)
