"""Drives a buffer through many steps: attempts end in random order, some groups fail, some are slow."""

import asyncio
import math
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from roll.rollout.buffer import Buffer
from roll.rollout.selection import Priority, ReplayLimits
from roll.serving.policies import ServedVersion
from roll.types import Group, Score, Status, Task, Trajectory

TASK = Task(id="t", domain="d", messages=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The sizes of a buffer, and what happens to its groups."""

    groups_per_step: int
    reuse: int = 1
    replayed: int | None = None
    """Groups per step that are trained on again; None: so many that every group is used `reuse` times."""
    staleness: float = 0.0
    redundant: int = 0
    priority: Priority = "age"
    slow: float = 0.2
    """Share of the groups that are complete only when nothing else is left to complete."""
    failing: float = 0.1
    steps: int = 20

    def num_slots(self, staleness: float) -> int:
        """As the configuration computes it."""
        num_new = self.groups_per_step - self.num_replayed
        return math.floor(self.groups_per_step + (staleness - math.ceil(self.num_replayed / num_new)) * num_new)

    @property
    def num_replayed(self) -> int:
        all_uses = self.groups_per_step - self.groups_per_step // self.reuse
        return all_uses if self.replayed is None else self.replayed


@dataclass(slots=True)
class Record:
    """What happened to the groups."""

    births: dict[int, int] = field(default_factory=dict[int, int])
    steps: dict[int, list[int]] = field(default_factory=lambda: defaultdict[int, list[int]](list))
    late: list[int] = field(default_factory=list[int])
    """Number of late groups per step."""
    dropped: set[int] = field(default_factory=set[int])


def complete_group(ticket: int, birth: int, chance: random.Random) -> Group:
    rewards = [float(chance.random() < 0.5) for _ in range(4)]
    attempts = [
        Trajectory(task=TASK, sibling=number, segments=(), status=Status.FINISHED, score=Score(reward))
        for number, reward in enumerate(rewards)
    ]
    return Group(id=ticket, birth=birth, trajectories=tuple(attempts))


async def drive(
    load: Load,
    seed: int,
    between: Callable[[Buffer, int, random.Random], None] = lambda buffer, step, chance: None,
    **bounds: Any,
) -> Record:
    """Run all steps; fails if a step waits although all groups in flight are complete."""
    chance, record, running = random.Random(seed), Record(), dict[int, bool]()
    buffer = Buffer(
        num_slots=load.num_slots(load.staleness),
        redundant=load.redundant,
        replay=ReplayLimits(max_uses=load.reuse, num_groups=load.num_replayed),
        priority=load.priority,
        **{"max_age": math.ceil(load.staleness), **bounds},
    )
    served = 0

    async def admit() -> None:
        while buffer.num_free > 0:
            ticket, birth = await buffer.admit(lambda: ServedVersion(served, served))
            record.births[ticket], running[ticket] = birth.step, chance.random() < load.slow

    async def advance() -> None:
        fast = [ticket for ticket, slow in running.items() if not slow]
        ticket = chance.choice(fast or list(running))
        del running[ticket]
        if chance.random() < load.failing:
            record.dropped.add(ticket)
            await buffer.drop(ticket)
            await admit()
        else:
            await buffer.put(complete_group(ticket, record.births[ticket], chance))
        await asyncio.sleep(0)

    for step in range(1, load.steps + 1):
        await admit()
        for _ in range(chance.randrange(len(running) + 1)):
            await advance()
        taking = asyncio.create_task(buffer.take(load.groups_per_step, step - 1))
        await asyncio.sleep(0)
        while not taking.done():
            assert running, f"step {step} waits, and nothing is left to complete"
            await advance()
        taken = await taking
        assert len(taken.groups) == load.groups_per_step
        assert step == 1 or taken.num_reused == load.num_replayed, "the last steps always have enough usable groups"
        for group in taken.groups:
            record.steps[group.id].append(step)
        record.late.append(len(taken.late))
        for ticket in taken.late:
            running.pop(ticket, None)
        record.dropped |= set(taken.late)
        served = step
        await buffer.release(taken.num_freed)
        between(buffer, step, chance)
    in_use = len(buffer._slots) + min(load.num_replayed, len(buffer._trained))  # pyright: ignore[reportPrivateUsage]
    assert buffer.num_free + in_use == buffer.num_slots
    return record
