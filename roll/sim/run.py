"""One simulated run: the wiring of a real run, with engines and environments that only take time."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Callable, Mapping
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
from roll.serving.dispatch import Concurrency, Timeouts
from roll.serving.router import Router
from roll.sim.batched import BatchedGenerator, DecodeSpeed
from roll.sim.clock import VirtualLoop, run_virtual
from roll.sim.engines import CallCost, GeneratorSpeed, RemoteCluster, SimGenerator, SimTrainer
from roll.sim.sharing import TimeSharing
from roll.sim.workload import Lengths
from roll.tracking.directory import RunDirectory
from roll.tracking.meter import Meter
from roll.tracking.progress import Progress, Reporter
from roll.wiring.data import build_data
from roll.wiring.models import PolicyEngines, Roles
from roll.wiring.run import RunServices, build_checkpointer, build_loop

_FREE = CallCost(latency_s=0.0, busy_s=0.0)
_ENDLESS = 10**9
"""A number of tokens or seconds that is never reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationConfig:
    """Parameters of a simulation."""

    steps: int
    lengths: Lengths
    """Tokens per response."""
    speed: GeneratorSpeed | DecodeSpeed
    num_generators: int
    update_s: float
    """Time of one update."""
    update_token_s: float = 0.0
    """Additional time of an update per sampled token."""
    shared: bool = False
    """Whether generators are on the trainer's devices and stop during an update."""
    time_sharing: TimeSharing | None = None
    """Generators on the trainer's devices whose parts move; None: none do."""
    groups_per_step: int = 64
    group_size: int = 8
    max_staleness: float = 0.0
    turns: int = 1
    env: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Arguments of `SimEnv`, except its turns; with `kind`, all arguments of another environment."""
    rollout: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Other settings of the section `rollout`."""
    source: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Other settings of the source of tasks, such as filters."""
    seed: int = 0
    max_wait_s: float = 3600.0
    """Longest wait of the router per call for events of a generator."""
    concurrency: int | None = 0
    """Most requests that the router sends to a generator; 0: as many as its slots, None: no limit."""
    call_cost: CallCost | None = None
    """None: calls and CPU time of the controller are free, and equal seeds give equal times."""
    until_s: float | None = None
    """Virtual seconds after which it is stopped; None: it ends with its last step."""
    on_step: Callable[[int], None] = lambda step: None
    """Called with the number of every finished step, for workloads that change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationResult:
    """Result of a simulation, in virtual seconds."""

    ends_s: list[float]
    """End of each step."""
    metrics: list[Mapping[str, float]]
    """The loop's metrics of each step."""
    alone_s: list[list[list[float]]]
    """By step and group, the duration of each trajectory without waiting for slots; empty if stopped early, and where
    the speed depends on the number of sequences."""
    elapsed_s: float
    controller_s: float
    """Busy time of the controller."""
    slot_s: float
    """Decoding time, summed over all slots of all generators."""
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
        """Mean of a metric over the steps after `first` up to `last`."""
        return float(np.mean([metrics[metric] for metrics in self.metrics[first:last]]))

    def slowest_s(self, first: int = 0, last: int | None = None) -> float:
        """Mean over these steps of the duration of the slowest trajectory without waiting for slots."""
        return float(np.mean([max(map(max, groups)) for groups in self.alone_s[first:last]]))

    @property
    def max_token_staleness(self) -> float:
        """Greatest staleness in steps of any trained token."""
        return max(metrics["staleness/max"] for metrics in self.metrics)


def simulate(setting: SimulationConfig) -> SimulationResult:
    """Run a simulation; it writes to a temporary directory only."""
    loop = VirtualLoop(charge_cpu=setting.call_cost is not None)
    with tempfile.TemporaryDirectory() as folder:
        return run_virtual(_Simulation(setting, loop, Path(folder)).run(), loop)


class _Simulation:
    """The parts of one simulated run."""

    def __init__(self, setting: SimulationConfig, clock: VirtualLoop, folder: Path) -> None:
        self._setting, self._clock, self._folder = setting, clock, folder
        self._generators = [_generator(setting, clock) for _ in range(setting.num_generators)]
        self._steps = _Steps(clock, setting.on_step)
        self._config = _config(setting)

    async def run(self) -> SimulationResult:
        began, setting = time.perf_counter(), self._setting
        cost = setting.call_cost or _FREE
        generators = RemoteCluster[Generator](self._generators, cost, self._clock)
        shared = self._generators if setting.shared else ()
        move_s = 0.0 if setting.time_sharing is None else setting.time_sharing.move_s
        trainer = SimTrainer(setting.update_s, token_s=setting.update_token_s, move_s=move_s, shared=shared)
        trainers = RemoteCluster[Trainer]([trainer], cost, self._clock)
        with (
            closing(RunDirectory.create(self._folder / "run", overwrite=False)) as directory,
            closing(Journal(directory.journal)) as journal,
        ):
            loop = self._build(directory, journal, generators, trainers)
            complete = True
            try:
                async with asyncio.timeout(setting.until_s):
                    await loop.run()
            except TimeoutError:
                complete = False
            speed = setting.speed
            alone_s = _alone_s(journal, setting, speed) if complete and isinstance(speed, GeneratorSpeed) else []
        return SimulationResult(
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
        router = Router(
            generators,
            max_wait_s=setting.max_wait_s,
            timeouts=Timeouts(request_s=_ENDLESS, call_s=_ENDLESS),
            concurrency=Concurrency(limit=setting.speed.slots if setting.concurrency == 0 else setting.concurrency),
        )
        roles = Roles(
            policies={"": PolicyEngines(trainers=trainers, generators=generators, router=router)},
            template=Template(character_tokenizer("0123456789")),
        )
        if (sharing := setting.time_sharing) is not None:
            roles = replace(roles, placement=sharing.placement(setting.num_generators))
        checkpointer = build_checkpointer(config, directory, roles, journal)
        reporter = Reporter(
            Progress(setting.steps, "", console=Console(quiet=True, force_terminal=False)), [self._steps]
        )
        books = RunServices(journal, checkpointer, reporter, Interrupt())
        loop = build_loop(config, roles, build_data(config, config.tasks, roles.template), books)
        return replace(loop, meter=Meter(self._clock.time))


def _generator(setting: SimulationConfig, clock: VirtualLoop) -> SimGenerator:
    speed = setting.speed
    if isinstance(speed, DecodeSpeed):
        generator: SimGenerator = BatchedGenerator(setting.lengths, speed, clock)
    else:
        generator = SimGenerator(setting.lengths, speed, clock)
    if setting.time_sharing is not None:
        generator.move_s = setting.time_sharing.move_s
    return generator


class _Steps:
    """A `Sink` that stores the end and the metrics of each step."""

    def __init__(self, clock: VirtualLoop, on_step: Callable[[int], None]) -> None:
        self._clock, self._on_step = clock, on_step
        self.ends_s: list[float] = []
        self.metrics: list[Mapping[str, float]] = []

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        self.ends_s.append(self._clock.time())
        self.metrics.append(dict(metrics))
        self._on_step(step)

    def close(self) -> None:
        """Nothing to release."""


def _config(setting: SimulationConfig) -> Run:
    """The configuration of a real run, so that all parts are built as usual."""
    num_tasks = 2 * setting.steps * setting.groups_per_step  # independent of staleness
    sim_env = {"kind": "roll.sim.workload:SimEnv", "turns": setting.turns}
    tree = {
        "steps": setting.steps,
        "seed": setting.seed,
        "model": {"shape": {"max_seq_len": 2 * _ENDLESS}},
        "algorithm": {"advantage": "group_normalised", "loss": "clipped", "aggregation": "token_mean"},
        "tasks": [
            {
                "name": "sim",
                "data": {"kind": "seeds", "count": num_tasks},
                "env": {**({} if "kind" in setting.env else sim_env), **setting.env},
                **setting.source,
            }
        ],
        "rollout": {
            "groups_per_step": setting.groups_per_step,
            "group_size": setting.group_size,
            "max_staleness": setting.max_staleness,
            "max_seq_len": 2 * _ENDLESS,
            "max_new_tokens": _ENDLESS,
            **setting.rollout,
        },
        "actor_train": {"tokens_per_microbatch": 2 * _ENDLESS},
        "validation": {"at_start": False},
        "checkpoint": {"every": 0},
        "tracking": {"tensorboard": False},
        "journal": {"keep_steps": None if setting.until_s is None else 1},
    }
    run = Run.model_validate_json(json.dumps(tree))
    if setting.time_sharing is None:
        return run
    lend_factor = setting.time_sharing.lend_factor  # which a run in one process cannot have
    return run.model_copy(update={"actor_infer": run.actor_infer.model_copy(update={"lend_factor": lend_factor})})


def _alone_s(journal: Journal, setting: SimulationConfig, speed: GeneratorSpeed) -> list[list[list[float]]]:
    """By step and group, the decoding time plus environment time of each trajectory."""
    steps: list[dict[int, list[float]]] = [{} for _ in range(setting.steps)]
    for stored in journal.trajectories():
        if stored.step is not None and stored.trajectory is not None:
            decoding_s = stored.trajectory.num_sampled / speed.tokens_per_s
            group = steps[stored.step - 1].setdefault(stored.group, [])
            group.append(decoding_s + stored.trajectory.metrics["waited_s"])
    return [[groups[ticket] for ticket in sorted(groups)] for groups in steps]
