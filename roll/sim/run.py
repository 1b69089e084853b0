"""One simulated run: the wiring of a real one, with engines and environments that only take time."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from roll.config.schema import Run
from roll.data.templates import Template, character_tokenizer
from roll.engines.base import Generator, Trainer
from roll.journal.store import Journal
from roll.pipelines.interrupt import Interrupt
from roll.pipelines.loop import Loop
from roll.pipelines.reference_models import Models
from roll.serving.load_balancing import Concurrency
from roll.serving.router import Patience, Router
from roll.sim.clock import VirtualLoop, run_virtual
from roll.sim.generator import SimGenerator, Speed
from roll.sim.lengths import Lengths
from roll.sim.remote import CallCost, RemoteCluster
from roll.sim.trainer import SimTrainer
from roll.tracking.directory import RunDirectory
from roll.tracking.meter import Meter
from roll.tracking.progress import Progress
from roll.tracking.reporter import Reporter
from roll.weights.plan import Plan
from roll.wiring.data import build_data
from roll.wiring.models import Roles
from roll.wiring.run import Books, build_keeper, build_loop

_FREE = CallCost(latency_s=0.0, busy_s=0.0)
_ENDLESS = 10**9
"""Tokens or seconds that are never reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is simulated."""

    steps: int
    lengths: Lengths
    """Tokens of a reply."""
    speed: Speed
    num_generators: int
    update_s: float
    """What one step's update takes."""
    groups_per_step: int = 64
    group_size: int = 8
    max_staleness: float = 0.0
    turns: int = 1
    env: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Arguments of `SimEnv` beside its turns."""
    rollout: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Other settings of the section `rollout`."""
    seed: int = 0
    max_wait_s: float = 3600.0
    """How long the router waits in one call for a generator that has nothing to say."""
    call_cost: CallCost | None = None
    """None: the controller's calls and its CPU time cost nothing, and the same seed gives the same times."""
    until_s: float | None = None
    """Virtual seconds after which it is broken off; None: it ends with its last step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of it, in virtual seconds."""

    ends_s: list[float]
    """When each step was over."""
    metrics: list[Mapping[str, float]]
    """What the loop reported of each step."""
    alone_s: list[list[list[float]]]
    """By step and group, what each trajectory takes if it never waits for a slot; empty if broken off."""
    elapsed_s: float
    controller_s: float
    """In which the controller was busy."""
    slot_s: float
    """In which slots decoded, over all slots of all generators."""
    num_tokens: int
    num_replies: int
    num_calls: int
    real_s: float

    def step_s(self, first: int = 0, last: int | None = None) -> float:
        """Mean duration of the steps after `first` up to `last`."""
        ends = [0.0, *self.ends_s]
        last = len(self.ends_s) if last is None else last
        return (ends[last] - ends[first]) / (last - first)

    def mean(self, metric: str, first: int = 0, last: int | None = None) -> float:
        """Of what the loop reported for the steps after `first` up to `last`."""
        return float(np.mean([metrics[metric] for metrics in self.metrics[first:last]]))

    def slowest_s(self, first: int = 0, last: int | None = None) -> float:
        """Mean over these steps of what the slowest of their trajectories takes if it never waits for a slot."""
        return float(np.mean([max(map(max, groups)) for groups in self.alone_s[first:last]]))

    @property
    def greatest_age(self) -> float:
        """In steps, of any token that was trained on."""
        return max(metrics["age/max"] for metrics in self.metrics)


def simulate(setting: Setting) -> Outcome:
    """Run it. Nothing outside a temporary directory is touched."""
    loop = VirtualLoop(charge_cpu=setting.call_cost is not None)
    with tempfile.TemporaryDirectory() as folder:
        return run_virtual(_Simulation(setting, loop, Path(folder)).run(), loop)


class _Simulation:
    """The parts of one simulated run."""

    def __init__(self, setting: Setting, clock: VirtualLoop, folder: Path) -> None:
        self._setting, self._clock, self._folder = setting, clock, folder
        self._generators = [SimGenerator(setting.lengths, setting.speed, clock) for _ in range(setting.num_generators)]
        self._steps = _Steps(clock)
        self._config = _config(setting)

    async def run(self) -> Outcome:
        began, setting = time.perf_counter(), self._setting
        cost = setting.call_cost or _FREE
        generators = RemoteCluster[Generator](self._generators, cost, self._clock)
        trainers = RemoteCluster[Trainer]([SimTrainer(setting.update_s)], cost, self._clock)
        with (
            closing(RunDirectory.create(self._folder / "run", overwrite=False)) as directory,
            closing(Journal(directory.journal)) as journal,
        ):
            loop = self._build(directory, journal, generators, trainers)
            whole = True
            try:
                async with asyncio.timeout(setting.until_s):
                    await loop.run()
            except TimeoutError:
                whole = False
            alone_s = _alone_s(journal, setting) if whole else []
        return Outcome(
            ends_s=self._steps.ends_s,
            metrics=self._steps.metrics,
            alone_s=alone_s,
            elapsed_s=self._clock.time(),
            controller_s=self._clock.busy_s,
            slot_s=sum(generator.slot_s for generator in self._generators),
            num_tokens=sum(generator.num_tokens for generator in self._generators),
            num_replies=sum(generator.num_replies for generator in self._generators),
            num_calls=generators.num_calls + trainers.num_calls,
            real_s=time.perf_counter() - began,
        )

    def _build(
        self,
        directory: RunDirectory,
        journal: Journal,
        generators: RemoteCluster[Generator],
        trainers: RemoteCluster[Trainer],
    ) -> Loop:
        setting, config = self._setting, self._config
        roles = Roles(
            trainers=trainers,
            generators=generators,
            models=Models(),
            plan=Plan(names=()),
            router=Router(
                generators,
                max_wait_s=setting.max_wait_s,
                patience=Patience(request_s=_ENDLESS, call_s=_ENDLESS),
                concurrency=Concurrency(limit=setting.speed.slots),
            ),
            template=Template(character_tokenizer("0123456789")),
        )
        keeper = build_keeper(config, directory, roles, journal)
        reporter = Reporter(
            Progress(setting.steps, "", console=Console(quiet=True, force_terminal=False)), [self._steps]
        )
        books = Books(journal, keeper, reporter, Interrupt())
        loop = build_loop(config, roles, build_data(config, config.tasks, roles.template), books)
        return replace(loop, meter=Meter(self._clock.time))


class _Steps:
    """A `Sink` that notes when each step was over."""

    def __init__(self, clock: VirtualLoop) -> None:
        self._clock = clock
        self.ends_s: list[float] = []
        self.metrics: list[Mapping[str, float]] = []

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        self.ends_s.append(self._clock.time())
        self.metrics.append(dict(metrics))

    def close(self) -> None:
        """Nothing to let go of."""


def _config(setting: Setting) -> Run:
    """The configuration of a real run, so that the scheduler is built as it always is."""
    num_tasks = 2 * setting.steps * setting.groups_per_step  # the same for all that differ in staleness alone
    tree = {
        "steps": setting.steps,
        "seed": setting.seed,
        "model": {"shape": {"context": 2 * _ENDLESS}},
        "algorithm": {"advantage": "group_normalised", "loss": "clipped", "aggregation": "token_mean"},
        "tasks": [
            {
                "name": "sim",
                "data": {"kind": "seeds", "count": num_tasks},
                "env": {"kind": "roll.sim.env:SimEnv", "turns": setting.turns, **setting.env},
            }
        ],
        "rollout": {
            "groups_per_step": setting.groups_per_step,
            "group_size": setting.group_size,
            "max_staleness": setting.max_staleness,
            "context": 2 * _ENDLESS,
            "max_new_tokens": _ENDLESS,
            **setting.rollout,
        },
        "actor_train": {"tokens_per_microbatch": 2 * _ENDLESS},
        "validation": {"at_start": False},
        "checkpoint": {"every": 0},
        "tracking": {"tensorboard": False},
        "journal": {"keep_steps": None if setting.until_s is None else 1},
    }
    return Run.model_validate_json(json.dumps(tree))


def _alone_s(journal: Journal, setting: Setting) -> list[list[list[float]]]:
    """By step and group, the time that decoding and environment take together for each trajectory."""
    steps: list[dict[int, list[float]]] = [{} for _ in range(setting.steps)]
    for kept in journal.trajectories():
        if kept.step is not None and kept.trajectory is not None:
            decoding_s = kept.trajectory.num_sampled / setting.speed.tokens_per_s
            group = steps[kept.step - 1].setdefault(kept.group, [])
            group.append(decoding_s + kept.trajectory.metrics["waited_s"])
    return [[groups[ticket] for ticket in sorted(groups)] for groups in steps]
