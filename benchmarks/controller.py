"""What a step of eight million tokens costs the controller, part by part, while engines do nothing.

Groups are as they come from the buffer. Statistics, journal, collation, credit, weights, shards and their way into
Ray's object store, from where two trainers take them, are those of a run.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import typer

from benchmarks.result import Result
from roll.algorithms.credit import Memory, assign_credit, weigh
from roll.algorithms.recipe import Objective, Recipe
from roll.cluster.handle import Cluster
from roll.cluster.ray.environment import settle_ray
from roll.data.collate import collate, split
from roll.engines.base import Trainer
from roll.journal.events import Taken
from roll.journal.store import Journal
from roll.rollout.statistics import compare, describe
from roll.types import Call, Finish, Group, Message, Score, Segment, Status, Task, Trajectory, Turn

GROUPS, SIBLINGS, PROMPT, REPLY, TRAINERS, REPEATS = 512, 8, 128, 1920, 2, 3
GOAL_S = 1.5
BESIDE = "journal"
"""Done by a thread of its own while trajectories come in, and so no part of the step."""
RECIPE = Recipe(advantage=Call("group_normalised"), loss=Call("clipped"), aggregation=Call("token_mean"))


def run() -> Result:
    """The sum of the parts, each the median of three after one that finds cold memory."""
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(_measured(Path(folder)))
    parts = {name: statistics.median(seconds[1:]) for name, seconds in found.items()}
    beside = parts.pop(BESIDE)
    typer.echo("  ".join(f"{name} {seconds:.3f} s" for name, seconds in parts.items()) + f"  ({BESIDE} {beside:.3f} s)")
    return Result(
        name="controller",
        unit="s",
        higher_is_better=False,
        ours=sum(parts.values()),
        bound=GOAL_S,
        details={
            "tokens": GROUPS * SIBLINGS * (PROMPT + REPLY),
            "parts_s": {name: round(seconds, 4) for name, seconds in parts.items()},
            "journal_beside_s": round(beside, 4),
        },
    )


class Laps:
    """Seconds by the part of a step, one number a repetition."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}

    @contextmanager
    def __call__(self, name: str) -> Generator[None]:
        began = time.perf_counter()
        yield
        self.seconds.setdefault(name, []).append(time.perf_counter() - began)


async def _measured(folder: Path) -> dict[str, list[float]]:
    settle_ray()
    from roll.cluster.ray.cluster import RayExecutor, Site

    executor = RayExecutor(Site(name="controller", directory=folder))
    trainers = executor.cluster(Call("benchmarks.answering:Absorbing"), TRAINERS, role="actor_train")
    laps = Laps()
    await executor.start()
    try:
        await trainers.each(Trainer.start)
        for step in range(1, REPEATS + 2):
            with closing(Journal(folder / f"journal-{step}.db")) as journal:
                await _step(step, laps, journal, trainers)
    finally:
        await executor.stop()
    return laps.seconds


async def _step(step: int, laps: Laps, journal: Journal, trainers: Cluster[Trainer]) -> None:
    """From what the buffer gives to what the trainers have, as `Loop.train` does it."""
    groups = sampled(GROUPS, SIBLINGS, prompt=PROMPT, reply=REPLY)
    with laps(BESIDE):
        for group in groups:
            for trajectory in group.trajectories:
                journal.keep(group.id, trajectory)
        journal.flush()
    with laps("describe"):
        describe(groups, step=step, step_of={0: 0})
        compare(groups, ())
    with laps("taken"):
        journal.record(Taken(step=step, groups=tuple(group.id for group in groups)))
        journal.flush(durable=True)
    with laps("collate"):
        batch = collate(groups)
    with laps("credit"):
        batch, _, _ = assign_credit(batch, RECIPE, Memory())
    with laps("weigh"):
        batch = weigh(batch, RECIPE.aggregation)
    with laps("split"):
        shards = split(batch, trainers.size)
    with laps("scatter"):
        answers = await trainers.scatter(Trainer.update, shards, Objective(loss=RECIPE.loss))
    assert sum(answer["tokens"] for answer in answers) == batch.num_tokens, "tokens were lost on the way"


def sampled(num_groups: int, siblings: int, *, prompt: int, reply: int) -> list[Group]:
    """Groups as they come from the buffer, of random tokens and rewards."""
    source = np.random.default_rng(0)
    versions = np.zeros(reply, np.int32)
    found: list[Group] = []
    for ticket in range(num_groups):
        task = Task(id=str(ticket), domain="math", messages=(Message("user", "?"),))
        asked = source.integers(4, 50_000, prompt, np.int32)
        attempts = [_attempt(task, sibling, asked, versions, source) for sibling in range(siblings)]
        found.append(Group(id=ticket, birth=0, trajectories=tuple(attempts)))
    return found


def _attempt(task: Task, sibling: int, asked: Any, versions: Any, source: np.random.Generator) -> Trajectory:
    num = len(versions)
    turn = Turn(
        observation=asked,
        sampled=source.integers(4, 50_000, num, np.int32),
        sampler_logprobs=-source.exponential(size=num).astype(np.float32),
        versions=versions,
        finish=Finish.LENGTH,
    )
    score = Score(float(source.integers(0, 2)))
    return Trajectory(
        task=task, sibling=sibling, segments=(Segment(turns=(turn,)),), status=Status.FINISHED, score=score
    )
