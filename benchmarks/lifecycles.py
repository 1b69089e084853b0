"""How many trajectories one controller can carry: admitted, sampled, scored, recorded, collated and trained.

Everything is real but the engines, which answer at once and learn nothing. The process is bound to one core.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import time
import tracemalloc
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import torch
import typer
from rich.console import Console

from benchmarks.result import Result
from roll.allocator import startup_set_aside
from roll.cluster.inline import InlineCluster
from roll.config.schema import Run
from roll.data.templates import Template, character_tokenizer
from roll.engines.base import Generator, Output, Request, Trainer
from roll.engines.fake import FakeGenerator
from roll.journal.store import Journal
from roll.pipelines.interrupt import Interrupt
from roll.pipelines.reference_models import Models
from roll.serving.router import Router
from roll.sim.trainer import SimTrainer
from roll.tracking.directory import RunDirectory
from roll.tracking.progress import Progress
from roll.tracking.reporter import Reporter
from roll.types import Finish
from roll.weights.plan import Plan
from roll.wiring.data import build_data
from roll.wiring.models import Roles
from roll.wiring.run import Books, build_keeper, build_loop

TOKENS, GROUPS, SIBLINGS, STEPS = 512, 64, 8, 42
IN_FLIGHT = 20_000
GOAL = 5_000.0


def run() -> Result:
    """Lifecycles a second over all steps but the first two; and what a waiting trajectory weighs."""
    with _one_core():
        seconds = asyncio.run(_steps())
        speed = GROUPS * SIBLINGS * len(seconds) / sum(seconds)
        typer.echo(f"{speed:,.0f} lifecycles a second on one core")
        weight = asyncio.run(_waiting())
        typer.echo(f"{IN_FLIGHT:,} trajectories in flight: {weight / 1024:.1f} KiB each")
    return Result(
        name="lifecycles",
        unit="lifecycles/s",
        higher_is_better=True,
        ours=speed,
        peer=GOAL,
        details={
            "tokens": TOKENS,
            "steps_s": [round(each, 4) for each in seconds],
            "in_flight": IN_FLIGHT,
            "bytes_per_waiting_trajectory": round(weight),
        },
    )


class Instant(FakeGenerator):
    """`Generator` that has every reply at once: random digits, as long as was asked for."""

    def __init__(self) -> None:
        super().__init__()
        source = np.random.default_rng(0)
        self._replies = [
            (source.integers(4, 14, TOKENS, np.int32), -source.exponential(size=TOKENS).astype(np.float32))
            for _ in range(64)
        ]

    async def submit(self, requests: Sequence[Request]) -> None:
        for request in requests:
            ids, logprobs = self._replies[request.key % len(self._replies)]
            self._outputs.append(
                Output(
                    id=request.id,
                    ids=ids.copy(),
                    logprobs=logprobs.copy(),
                    version=self.version,
                    finish=Finish.LENGTH,
                )
            )


class Deaf(FakeGenerator):
    """`Generator` that takes requests and never answers."""

    async def events(self, max_wait_s: float) -> list[Output]:
        await asyncio.sleep(max_wait_s)
        return []


class Times:
    """A `Sink` that notes when each step was over."""

    def __init__(self) -> None:
        self.ends = [time.perf_counter()]

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        self.ends.append(time.perf_counter())

    def close(self) -> None:
        """Nothing to let go of."""

    def steps_s(self) -> list[float]:
        """What each step took but for the first two."""
        return [end - begin for begin, end in zip(self.ends[2:], self.ends[3:], strict=False)]


async def _steps() -> list[float]:
    times = Times()
    with tempfile.TemporaryDirectory() as folder:
        await _run(Path(folder), Instant(), times, groups=GROUPS)
    return times.steps_s()


async def _waiting() -> float:
    """Bytes for each trajectory, while all of them wait for their first token."""
    with tempfile.TemporaryDirectory() as folder:
        tracemalloc.start()
        running = asyncio.create_task(_run(Path(folder), Deaf(), Times(), groups=IN_FLIGHT // SIBLINGS))
        await asyncio.sleep(5)
        size = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        running.cancel()
        await asyncio.wait([running])
    return size / IN_FLIGHT


async def _run(folder: Path, engine: FakeGenerator, times: Times, *, groups: int) -> None:
    generators, trainers = InlineCluster[Generator]([engine]), InlineCluster[Trainer]([SimTrainer(0.0)])
    roles = Roles(
        trainers=trainers,
        generators=generators,
        models=Models(),
        plan=Plan(names=()),
        router=Router(generators),
        template=Template(character_tokenizer("0123456789+=")),
    )
    await train(folder / "run", roles, times, config(groups, STEPS))


async def train(path: Path, roles: Roles, times: Times, settings: Run) -> None:
    """The whole run, with replies that nothing ends early."""
    roles.template.eos_ids = frozenset()
    with (
        closing(RunDirectory.create(path, overwrite=False)) as directory,
        closing(Journal(directory.journal)) as journal,
    ):
        keeper = build_keeper(settings, directory, roles, journal)
        quiet = Progress(settings.steps, "", console=Console(quiet=True, force_terminal=False))
        books = Books(journal, keeper, Reporter(quiet, [times]), Interrupt())
        loop = build_loop(settings, roles, build_data(settings, settings.tasks, roles.template), books)
        with startup_set_aside():
            await loop.run()


def config(groups: int, steps: int) -> Run:
    """A run of so many groups a step, at staleness 1."""
    tree = {
        "steps": steps,
        "model": {"shape": {"context": 2 * TOKENS}},
        "algorithm": {"advantage": "group_normalised", "loss": "clipped", "aggregation": "token_mean"},
        "tasks": [{"name": "sums", "data": {"kind": "arithmetic", "pad": True}, "reward": "exact"}],
        "rollout": {
            "groups_per_step": groups,
            "group_size": SIBLINGS,
            "max_staleness": 1,
            "context": 2 * TOKENS,
            "max_new_tokens": TOKENS,
        },
        "validation": {"at_start": False},
        "checkpoint": {"every": 0},
        "tracking": {"tensorboard": False},
        "journal": {"keep_steps": 2},
    }
    return Run.model_validate_json(json.dumps(tree))


class _one_core:  # noqa: N801 - used like a function
    """This process runs on one core inside this block, where the system lets it, with one thread of torch's."""

    def __enter__(self) -> None:
        self._before = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)
        if self._before:
            os.sched_setaffinity(0, {min(self._before)})

    def __exit__(self, *_: object) -> None:
        torch.set_num_threads(self._threads)
        if self._before:
            os.sched_setaffinity(0, self._before)
