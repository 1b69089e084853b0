"""Drives a buffer through many steps: attempts end in random order, some groups fail, some are slow."""

import asyncio
import math
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from roll.rollout.buffer import Buffer
from roll.rollout.selection import Priority
from roll.serving.policies import ServedVersion
from roll.types import Group, Score, Status, Task, Trajectory

TASK = Task(id="t", domain="d", messages=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The sizes of a buffer, and what happens to its groups."""

    groups_per_step: int
    reuse: int = 1
    staleness: float = 0.0
    redundant: int = 0
    priority: Priority = "age"
    slow: float = 0.2
    """Share of the groups that are complete only when nothing else is left to complete."""
    failing: float = 0.1
    steps: int = 20

    def num_slots(self, staleness: float) -> int:
        """As the configuration computes it."""
        return math.floor(self.groups_per_step + (staleness - self.reuse + 1) * (self.groups_per_step // self.reuse))


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
        reuse=load.reuse,
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
        for group in taken.groups:
            record.steps[group.id].append(step)
        record.late.append(len(taken.late))
        for ticket in taken.late:
            running.pop(ticket, None)
        record.dropped |= set(taken.late)
        served = step
        await buffer.release(len(taken.leaving) + len(taken.late))
        between(buffer, step, chance)
    assert buffer.num_free + len(buffer._slots) == buffer.num_slots  # pyright: ignore[reportPrivateUsage]
    return record
