"""Trajectories per second of one controller with Ray actors as generators, remote calls included.

Scheduler, router, journal, collation, credit, processes and Ray are real; the actors answer immediately and the trainer
learns nothing.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Concatenate

import typer

from benchmarks.lifecycles import GROUPS, SIBLINGS, TOKENS, StepTimes, config, train
from benchmarks.result import Result
from roll.cluster.handle import Cluster, Method, P, R, S
from roll.cluster.inline import InlineCluster
from roll.cluster.ray.environment import set_ray_environment
from roll.data.templates import Template, character_tokenizer
from roll.engines.base import Trainer
from roll.serving.router import Router
from roll.sim.engines import SimTrainer
from roll.types import Spec
from roll.wiring.models import PolicyEngines, Roles

ACTORS, STEPS = 4, 32
GOAL = 2_000.0


def run() -> Result:
    """Lifecycles per second over all steps but the first two, with the number of remote calls per step."""
    with tempfile.TemporaryDirectory() as folder:
        seconds, calls, cpu_s = asyncio.run(_steps(Path(folder)))
    speed = GROUPS * SIBLINGS * len(seconds) / sum(seconds)
    per_step = {name: round(number / STEPS, 1) for name, number in calls.items()}
    typer.echo(f"{speed:,.0f} lifecycles per second over {ACTORS} actors; calls per step: {per_step}")
    return Result(
        name="ray_lifecycles",
        unit="lifecycles/s",
        higher_is_better=True,
        ours=speed,
        peer=GOAL,
        details={
            "actors": ACTORS,
            "tokens": TOKENS,
            "steps_s": [round(each, 4) for each in seconds],
            "calls_per_step": per_step,
            "controller_cpu_us": round(cpu_s / (GROUPS * SIBLINGS * STEPS) * 1e6),
            "bytes_per_lifecycle": TOKENS * (4 + 4),
        },
    )


class CountingCluster:
    """`Cluster` that forwards to another one and counts the calls by method name."""

    def __init__(self, cluster: Cluster[Any]) -> None:
        self._cluster = cluster
        self.calls: Counter[str] = Counter()

    @property
    def size(self) -> int:
        return self._cluster.size

    async def each(self, method: Method[P, R], *args: P.args, **kwargs: P.kwargs) -> list[R]:
        self.calls[method.__name__] += self.size
        return await self._cluster.each(method, *args, **kwargs)

    async def scatter(
        self,
        method: Callable[Concatenate[Any, S, P], Awaitable[R]],
        shards: Sequence[S],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> list[R]:
        self.calls[method.__name__] += self.size
        return await self._cluster.scatter(method, shards, *args, **kwargs)

    async def at(self, rank: int, method: Method[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        self.calls[method.__name__] += 1
        return await self._cluster.at(rank, method, *args, **kwargs)


async def _steps(folder: Path) -> tuple[list[float], Counter[str], float]:
    """Seconds of each step but the first two, calls of all steps, and CPU seconds of this process."""
    set_ray_environment()
    from roll.cluster.ray.config import RayConfig
    from roll.cluster.ray.executor import RayExecutor

    executor = RayExecutor(RayConfig(name="lifecycles", directory=folder))
    spec = Spec("benchmarks.answering:InstantGenerator", {"num_tokens": TOKENS})
    generators = CountingCluster(executor.cluster(spec, ACTORS, role="actor_infer"))
    trainers = InlineCluster[Trainer]([SimTrainer(0.0)])
    policy = PolicyEngines(trainers=trainers, generators=generators, router=Router(generators))
    roles = Roles(
        policies={"": policy},
        template=Template(character_tokenizer("0123456789+=")),
        executor=executor,
    )
    times = StepTimes()
    await roles.start()
    try:
        generators.calls.clear()
        began = time.process_time()
        await train(folder / "run", roles, times, config(GROUPS, STEPS))
        cpu_s = time.process_time() - began
    finally:
        await roles.stop()
    return times.steps_s(), generators.calls, cpu_s
