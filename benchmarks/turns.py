"""Turns per second of one controller with 2,000 live environments.

Only the engine is a stub, which answers immediately. Each turn passes the environment, the template, the episode
runner, the router and the journal; groups are taken as soon as they are complete.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import typer

from benchmarks.result import Result
from roll.allocator import freeze_startup_objects
from roll.cluster.inline import InlineCluster
from roll.data.mixture import Mixture, MixturePart
from roll.data.tasks import seeds
from roll.data.templates import Template, character_tokenizer
from roll.engines.base import Generator, Output, Request
from roll.engines.fake import FakeGenerator
from roll.envs.base import StepResult
from roll.envs.frozen_lake import FrozenLake
from roll.journal.store import Journal
from roll.rollout.buffer import Buffer
from roll.rollout.episode.runner import EpisodeLimits, EpisodeRunner
from roll.rollout.scheduler import Scheduler, SchedulerConfig
from roll.rollout.source import TaskSource
from roll.serving.policies import ServedVersion
from roll.serving.router import Router
from roll.types import Finish, Message, Sampling, Spec

LIVE, SIBLINGS, SLOTS, GROUPS_PER_TAKE = 2_000, 8, 640, 8
"""A group keeps its slot until its last sibling ends, so 640 slots hold fewer than 5,120 live attempts."""
TURNS, WARM_UP = 60_000, 40_000
ALPHABET = "udlrp.og\n"
GOAL = 3_000.0


@dataclass(slots=True)
class Counters:
    """Turns so far, and environments that are live now."""

    turns: int = 0
    live: int = 0


COUNTERS = Counters()
"""Global, because environments are created by name and cannot be passed a counter."""


class CountedLake(FrozenLake):
    """A FrozenLake that counts turns and live instances in `COUNTERS`."""

    async def start(self) -> tuple[Message, ...]:
        COUNTERS.live += 1
        return await super().start()

    async def step(self, response: str) -> StepResult:
        COUNTERS.turns += 1
        return await super().step(response)

    async def close(self) -> None:
        COUNTERS.live -= 1
        await super().close()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Counters at one time."""

    at_s: float
    cpu_s: float
    turns: int
    live: int


class RandomMoves(FakeGenerator):
    """`Generator` that answers immediately with a random move: one letter and the end-of-sequence token."""

    def __init__(self, moves: Sequence[int], end: int) -> None:
        super().__init__()
        self._responses = [(move, end) for move in moves]

    async def submit(self, requests: Sequence[Request]) -> None:
        for request in requests:
            ids = self._responses[request.key % len(self._responses)]
            self._outputs.append(Output.of(request.id, ids, (-1.386, -0.001), version=self.version, finish=Finish.STOP))


def run() -> Result:
    """Turns per second after the warm-up."""
    with freeze_startup_objects():  # as in a run
        snapshots = asyncio.run(_snapshots())
    first, last = snapshots[0], snapshots[-1]
    turns, seconds = last.turns - first.turns, last.at_s - first.at_s
    live = [snapshot.live for snapshot in snapshots]
    mean_live = float(np.mean(live))
    assert mean_live >= LIVE, f"only {mean_live:.0f} environments were live on average"
    typer.echo(f"{turns / seconds:,.0f} turns per second with {mean_live:,.0f} environments live on average")
    return Result(
        name="turns",
        unit="turns/s",
        higher_is_better=True,
        ours=turns / seconds,
        bound=GOAL,
        details={
            "turns": turns,
            "seconds": round(seconds, 2),
            "turns_per_cpu_second": round(turns / (last.cpu_s - first.cpu_s)),
            "live_at_least": min(live),
            "live_on_average": round(mean_live),
        },
    )


async def _snapshots() -> list[Snapshot]:
    """One snapshot every 0.1 s from the end of the warm-up."""
    with tempfile.TemporaryDirectory() as folder, closing(Journal(Path(folder) / "journal.db")) as journal:
        router, scheduler = _build(journal)
        running = [asyncio.create_task(work) for work in (router.run(), scheduler.run(10**9), _consume(scheduler))]
        await router.release(0)
        snapshots: list[Snapshot] = []
        while COUNTERS.turns < WARM_UP + TURNS:
            if COUNTERS.turns >= WARM_UP:
                snapshots.append(Snapshot(time.perf_counter(), time.process_time(), COUNTERS.turns, COUNTERS.live))
            await asyncio.wait(running, timeout=0.1, return_when=asyncio.FIRST_COMPLETED)
            for task in running:
                if task.done():
                    await task  # re-raises its exception
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    return snapshots


async def _consume(scheduler: Scheduler, num_groups: int = GROUPS_PER_TAKE) -> None:
    """Take complete groups as training does, and release their slots."""
    while True:
        groups = (await scheduler.buffer.take(num_groups, step=0)).groups
        scheduler.forget(groups, step=0)
        await scheduler.buffer.release(num_groups)


def _build(journal: Journal, slots: int = SLOTS) -> tuple[Router, Scheduler]:
    template = Template(character_tokenizer(ALPHABET))
    moves = [template.tokenizer.get_vocab()[letter] for letter in "udlr"]
    router = Router(InlineCluster[Generator]([RandomMoves(moves, template.eos_id)]))
    tasks = seeds()
    lake = TaskSource(name="lake", tasks=tasks, env=Spec("benchmarks.turns:CountedLake", {"terse": True}), reward=None)
    limits = EpisodeLimits(sampling=Sampling(), max_seq_len=512, max_new_tokens=2, max_turns=16, stop=template.eos_ids)
    return router, Scheduler(
        mixture=Mixture([MixturePart(name="lake", tasks=tasks)], seed=0),
        sources={"lake": lake},
        runner=EpisodeRunner(router=router, template=template, limits=limits),
        buffer=Buffer(num_slots=slots - 1, redundant=1, max_age=1),
        journal=journal,
        config=SchedulerConfig(group_size=SIBLINGS, max_retries=0, max_failed_groups=0, seed=0),
        serving=lambda: ServedVersion(0, 0),
    )
