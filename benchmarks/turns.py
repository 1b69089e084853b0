"""How many turns a second one controller carries with 2,000 environments live at once.

Everything is real but the engine, a stub that has every move at once. Each turn goes through the environment, the
template, the episode runner, the router and the journal; groups are taken as soon as they are complete.
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
from roll.cluster.inline import InlineCluster
from roll.data.mixture import Mixture, Part
from roll.data.tasks import seeds
from roll.data.templates import Template, character_tokenizer
from roll.engines.base import Generator, Output, Request
from roll.engines.fake import FakeGenerator
from roll.envs.base import Reply
from roll.envs.frozen_lake import FrozenLake
from roll.journal.store import Journal
from roll.rollout.buffer import Buffer
from roll.rollout.episode.runner import EpisodeRunner, Limits
from roll.rollout.scheduler import Policy, Scheduler
from roll.rollout.source import Source
from roll.serving.router import Router
from roll.types import Call, Finish, Message, Sampling, ServedVersion

LIVE, SIBLINGS, SLOTS, TAKEN = 2_000, 8, 640, 8
"""A group keeps its slot until its last sibling has ended, so some attempts of those under way are over already."""
TURNS, WARM_UP = 60_000, 40_000
ALPHABET = "udlrp.og\n"
GOAL = 3_000.0


@dataclass(slots=True)
class Watch:
    """What happened so far."""

    turns: int = 0
    live: int = 0


WATCH = Watch()
"""Of this process: environments are made by name, and cannot be given one."""


class Lake(FrozenLake):
    """A FrozenLake of which it is known how many there are."""

    async def start(self) -> tuple[Message, ...]:
        WATCH.live += 1
        return await super().start()

    async def step(self, reply: str) -> Reply:
        WATCH.turns += 1
        return await super().step(reply)

    async def close(self) -> None:
        WATCH.live -= 1
        await super().close()


@dataclass(frozen=True, slots=True)
class Mark:
    """How far things are."""

    at_s: float
    cpu_s: float
    turns: int
    live: int


class Mover(FakeGenerator):
    """`Generator` that has a move for every request at once: a letter at random, and the end of the reply."""

    def __init__(self, moves: Sequence[int], end: int) -> None:
        super().__init__()
        self._replies = [(move, end) for move in moves]

    async def submit(self, requests: Sequence[Request]) -> None:
        for request in requests:
            ids = self._replies[request.key % len(self._replies)]
            self._outputs.append(Output.of(request.id, ids, (-1.386, -0.001), version=self.version, finish=Finish.STOP))


def run() -> Result:
    """Turns a second after the warm-up."""
    marks = asyncio.run(_marks())
    first, last = marks[0], marks[-1]
    turns, seconds = last.turns - first.turns, last.at_s - first.at_s
    live = [mark.live for mark in marks]
    mean_live = float(np.mean(live))
    assert mean_live >= LIVE, f"only {mean_live:.0f} environments were live on average"
    typer.echo(f"{turns / seconds:,.0f} turns a second with {mean_live:,.0f} environments live on average")
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


async def _marks() -> list[Mark]:
    """One every tenth of a second, from the end of the warm-up."""
    with tempfile.TemporaryDirectory() as folder, closing(Journal(Path(folder) / "journal.db")) as journal:
        router, scheduler = _parts(journal)
        running = [asyncio.create_task(work) for work in (router.run(), scheduler.run(10**9), _consume(scheduler))]
        await router.release(0)
        marks: list[Mark] = []
        while WATCH.turns < WARM_UP + TURNS:
            if WATCH.turns >= WARM_UP:
                marks.append(Mark(time.perf_counter(), time.process_time(), WATCH.turns, WATCH.live))
            await asyncio.wait(running, timeout=0.1, return_when=asyncio.FIRST_COMPLETED)
            for task in running:
                if task.done():
                    await task  # raises what ended it
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    return marks


async def _consume(scheduler: Scheduler, taken: int = TAKEN) -> None:
    """Take what is complete, as training does, and let others start."""
    while True:
        groups, _ = await scheduler.buffer.take(taken, step=0)
        scheduler.forget(groups)
        await scheduler.buffer.release(taken)


def _parts(journal: Journal, slots: int = SLOTS) -> tuple[Router, Scheduler]:
    template = Template(character_tokenizer(ALPHABET))
    moves = [template.tokenizer.get_vocab()[letter] for letter in "udlr"]
    router = Router(InlineCluster[Generator]([Mover(moves, template.eos_id)]))
    tasks = seeds()
    lake = Source(name="lake", tasks=tasks, env=Call("benchmarks.turns:Lake", {"terse": True}), reward=None)
    limits = Limits(sampling=Sampling(), context=512, max_new_tokens=2, max_turns=16, stop=template.eos_ids)
    return router, Scheduler(
        mixture=Mixture([Part(name="lake", tasks=tasks)], seed=0),
        sources={"lake": lake},
        runner=EpisodeRunner(router=router, template=template, limits=limits),
        buffer=Buffer(num_slots=slots - 1, redundant=1, max_age=1),
        journal=journal,
        policy=Policy(group_size=SIBLINGS, max_retries=0, max_failed_groups=0, seed=0),
        serving=lambda: ServedVersion(0, 0),
    )
