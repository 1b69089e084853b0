"""Trajectories per second of one controller: admitted, sampled, scored, recorded, collated and trained.

Only the engines are stubs, which answer immediately and learn nothing. The process is pinned to one core.
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
from roll.allocator import freeze_startup_objects
from roll.cluster.inline import InlineCluster
from roll.config.schema import Run
from roll.data.templates import Template, character_tokenizer
from roll.engines.base import Generator, Output, Request, Trainer
from roll.engines.fake import FakeGenerator
from roll.journal.store import Journal
from roll.pipelines.interrupt import Interrupt
from roll.serving.router import Router
from roll.sim.engines import SimTrainer
from roll.tracking.directory import RunDirectory
from roll.tracking.progress import Progress, Reporter
from roll.types import Finish
from roll.wiring.data import build_data
from roll.wiring.models import PolicyEngines, Roles
from roll.wiring.run import RunServices, build_checkpointer, build_loop

TOKENS, GROUPS, SIBLINGS, STEPS = 512, 64, 8, 42
IN_FLIGHT = 20_000
GOAL = 5_000.0


def run() -> Result:
    """Lifecycles per second over all steps but the first two, and the memory of a waiting trajectory."""
    with _OneCore():
        seconds = asyncio.run(_steps())
        speed = GROUPS * SIBLINGS * len(seconds) / sum(seconds)
        typer.echo(f"{speed:,.0f} lifecycles per second on one core")
        num_bytes = asyncio.run(_waiting_bytes())
        typer.echo(f"{IN_FLIGHT:,} trajectories in flight: {num_bytes / 1024:.1f} KiB each")
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
            "bytes_per_waiting_trajectory": round(num_bytes),
        },
    )


class ImmediateGenerator(FakeGenerator):
    """`Generator` that answers immediately with random digits of the requested length."""

    def __init__(self) -> None:
        super().__init__()
        rng = np.random.default_rng(0)
        self._responses = [
            (rng.integers(4, 14, TOKENS, np.int32), -rng.exponential(size=TOKENS).astype(np.float32)) for _ in range(64)
        ]

    async def submit(self, requests: Sequence[Request]) -> None:
        for request in requests:
            ids, logprobs = self._responses[request.key % len(self._responses)]
            self._outputs.append(
                Output(
                    id=request.id,
                    ids=ids.copy(),
                    logprobs=logprobs.copy(),
                    version=self.version,
                    finish=Finish.LENGTH,
                )
            )


class SilentGenerator(FakeGenerator):
    """`Generator` that accepts requests and never answers."""

    async def events(self, max_wait_s: float) -> list[Output]:
        await asyncio.sleep(max_wait_s)
        return []


class StepTimes:
    """A `Sink` that records when each step ends."""

    def __init__(self) -> None:
        self.ends = [time.perf_counter()]

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        self.ends.append(time.perf_counter())

    def close(self) -> None:
        """No resources to release."""

    def steps_s(self) -> list[float]:
        """Seconds of each step but the first two."""
        return [end - begin for begin, end in zip(self.ends[2:], self.ends[3:], strict=False)]


async def _steps() -> list[float]:
    times = StepTimes()
    with tempfile.TemporaryDirectory() as folder:
        await _run(Path(folder), ImmediateGenerator(), times, groups=GROUPS)
    return times.steps_s()


async def _waiting_bytes() -> float:
    """Bytes per trajectory while all of them wait for their first token."""
    with tempfile.TemporaryDirectory() as folder:
        tracemalloc.start()
        running = asyncio.create_task(_run(Path(folder), SilentGenerator(), StepTimes(), groups=IN_FLIGHT // SIBLINGS))
        await asyncio.sleep(5)
        size = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        running.cancel()
        await asyncio.wait([running])
    return size / IN_FLIGHT


async def _run(folder: Path, engine: FakeGenerator, times: StepTimes, *, groups: int) -> None:
    generators, trainers = InlineCluster[Generator]([engine]), InlineCluster[Trainer]([SimTrainer(0.0)])
    policy = PolicyEngines(trainers=trainers, generators=generators, router=Router(generators))
    roles = Roles(
        policies={"": policy},
        template=Template(character_tokenizer("0123456789+=")),
    )
    await train(folder / "run", roles, times, config(groups, STEPS))


async def train(path: Path, roles: Roles, times: StepTimes, settings: Run) -> None:
    """The whole run, without end-of-sequence tokens."""
    roles.template.eos_ids = frozenset()
    with (
        closing(RunDirectory.create(path, overwrite=False)) as directory,
        closing(Journal(directory.journal)) as journal,
    ):
        checkpointer = build_checkpointer(settings, directory, roles, journal)
        quiet = Progress(settings.steps, "", console=Console(quiet=True, force_terminal=False))
        services = RunServices(journal, checkpointer, Reporter(quiet, [times]), Interrupt())
        loop = build_loop(settings, roles, build_data(settings, settings.tasks, roles.template), services)
        with freeze_startup_objects():
            await loop.run()


def config(groups: int, steps: int) -> Run:
    """A run with this many groups per step, at staleness 1."""
    tree = {
        "steps": steps,
        "model": {"shape": {"max_seq_len": 2 * TOKENS}},
        "algorithm": {"advantage": "group_normalised", "loss": "clipped", "aggregation": "token_mean"},
        "tasks": [{"name": "sums", "data": {"kind": "arithmetic", "pad": True}, "reward": "exact"}],
        "rollout": {
            "groups_per_step": groups,
            "group_size": SIBLINGS,
            "max_staleness": 1,
            "max_seq_len": 2 * TOKENS,
            "max_new_tokens": TOKENS,
        },
        "validation": {"at_start": False},
        "checkpoint": {"every": 0},
        "tracking": {"tensorboard": False},
        "journal": {"keep_steps": 2},
    }
    return Run.model_validate_json(json.dumps(tree))


class _OneCore:
    """Pin this process to one core where the system allows it, with one torch thread, inside the block."""

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
