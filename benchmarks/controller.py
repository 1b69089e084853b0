"""Time that the controller adds to a step of eight million tokens, by part, with engines that do nothing.

Groups have the form in which the buffer returns them. Statistics, journal, collation, credit, weights, shards and their
transfer to two trainers through Ray's object store are those of a run.
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
from roll.algorithms.credit import AlgorithmState, assign_credit, with_loss_weights
from roll.algorithms.recipe import Objective, Recipe
from roll.cluster.handle import Cluster
from roll.cluster.ray.environment import set_ray_environment
from roll.data.collate import collate, split
from roll.engines.base import Trainer
from roll.journal.events import StepStarted
from roll.journal.store import Journal
from roll.rollout.statistics import compare, describe
from roll.types import Finish, Group, Message, Score, Segment, Spec, Status, Task, Trajectory, Turn

GROUPS, SIBLINGS, PROMPT, RESPONSE, TRAINERS, REPEATS = 512, 8, 128, 1920, 2, 3
GOAL_S = 1.5
CONCURRENT = "journal"
"""Runs in a separate thread while trajectories arrive, so it is not part of the step."""
RECIPE = Recipe(advantage=Spec("group_normalised"), loss=Spec("clipped"), aggregation=Spec("token_mean"))


def run() -> Result:
    """The sum of the parts, each the median of three repetitions after a warm-up."""
    with tempfile.TemporaryDirectory() as folder:
        laps = asyncio.run(_measure(Path(folder)))
    parts = {name: statistics.median(seconds[1:]) for name, seconds in laps.items()}
    concurrent_s = parts.pop(CONCURRENT)
    typer.echo(
        "  ".join(f"{name} {seconds:.3f} s" for name, seconds in parts.items())
        + f"  ({CONCURRENT} {concurrent_s:.3f} s)"
    )
    return Result(
        name="controller",
        unit="s",
        higher_is_better=False,
        ours=sum(parts.values()),
        bound=GOAL_S,
        details={
            "tokens": GROUPS * SIBLINGS * (PROMPT + RESPONSE),
            "parts_s": {name: round(seconds, 4) for name, seconds in parts.items()},
            "journal_beside_s": round(concurrent_s, 4),
        },
    )


class Laps:
    """Seconds by part of a step, one value per repetition."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}

    @contextmanager
    def __call__(self, name: str) -> Generator[None]:
        began = time.perf_counter()
        yield
        self.seconds.setdefault(name, []).append(time.perf_counter() - began)


async def _measure(folder: Path) -> dict[str, list[float]]:
    set_ray_environment()
    from roll.cluster.ray.config import RayConfig
    from roll.cluster.ray.executor import RayExecutor

    executor = RayExecutor(RayConfig(name="controller", directory=folder))
    trainers = executor.cluster(Spec("benchmarks.answering:CountingTrainer"), TRAINERS, role="actor_train")
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
    """One step as in `Loop.train`, from the groups of the buffer to the shards at the trainers."""
    groups = random_groups(GROUPS, SIBLINGS, prompt=PROMPT, response=RESPONSE)
    with laps(CONCURRENT):
        for group in groups:
            for trajectory in group.trajectories:
                journal.record_trajectory(group.id, trajectory)
        journal.flush()
    with laps("describe"):
        describe(groups, step=step, step_of={0: 0})
        compare(groups, ())
    with laps("taken"):
        journal.record(StepStarted(step=step, groups=tuple(group.id for group in groups)))
        journal.flush(durable=True)
    with laps("collate"):
        batch = collate(groups)
    with laps("credit"):
        batch, _, _ = assign_credit(batch, RECIPE, AlgorithmState())
    with laps("weigh"):
        batch = with_loss_weights(batch, RECIPE.aggregation)
    with laps("split"):
        shards = split(batch, trainers.size)
    with laps("scatter"):
        answers = await trainers.scatter(Trainer.update, shards, Objective(loss=RECIPE.loss))
    assert sum(answer["tokens"] for answer in answers) == batch.num_tokens, (
        "the trainers received fewer tokens than the batch has"
    )


def random_groups(num_groups: int, siblings: int, *, prompt: int, response: int) -> list[Group]:
    """Groups as the buffer returns them, with random tokens and rewards."""
    rng = np.random.default_rng(0)
    versions = np.zeros(response, np.int32)
    groups: list[Group] = []
    for ticket in range(num_groups):
        task = Task(id=str(ticket), domain="math", messages=(Message("user", "?"),))
        prompt_ids = rng.integers(4, 50_000, prompt, np.int32)
        attempts = [_attempt(task, sibling, prompt_ids, versions, rng) for sibling in range(siblings)]
        groups.append(Group(id=ticket, birth=0, trajectories=tuple(attempts)))
    return groups


def _attempt(task: Task, sibling: int, prompt_ids: Any, versions: Any, rng: np.random.Generator) -> Trajectory:
    num = len(versions)
    turn = Turn(
        observation=prompt_ids,
        sampled=rng.integers(4, 50_000, num, np.int32),
        sampler_logprobs=-rng.exponential(size=num).astype(np.float32),
        versions=versions,
        finish=Finish.LENGTH,
    )
    score = Score(float(rng.integers(0, 2)))
    return Trajectory(
        task=task, sibling=sibling, segments=(Segment(turns=(turn,)),), status=Status.FINISHED, score=score
    )
