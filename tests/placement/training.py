"""Whole runs of a few steps, placed as a test wishes, with everything they leave."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from roll.cluster.handle import Cluster
from roll.config.load import load
from roll.config.schema import Run
from roll.journal.events import WeightsPublished
from roll.journal.store import Journal
from roll.pipelines.interrupt import Interrupt
from roll.placement.records import Offload, Placement
from roll.tracking.directory import RunDirectory
from roll.types import Task
from roll.weights.huggingface import read_tensors
from roll.wiring.data import build_data
from roll.wiring.models import Roles, build_roles
from roll.wiring.run import RunServices, build_checkpointer, build_loop, build_reporter

RUN = f"""\
name: run
threads: 1
seed: 5
steps: 3
model: {{shape: {{alphabet: "0123456789+=", hidden: 32, layers: 2, heads: 4, kv_heads: 2, mlp: 64, max_seq_len: 64}}}}
algorithm: grpo
tasks: [{{name: sums, data: arithmetic, reward: "{__name__}:even"}}]
rollout: {{groups_per_step: 3, group_size: 3, max_seq_len: 32, max_new_tokens: 8}}
actor_train: {{tokens_per_microbatch: 64, optimizer: {{lr: 0.01}}}}
actor_infer: {{max_num_seqs: 64, max_num_batched_tokens: 16}}
tracking: {{tensorboard: false}}
"""
EVERYTHING = (
    Offload(role="actor_train", phase="rollout", parts=("optimizer", "weights")),
    Offload(role="actor_train", phase="weight_sync", parts=("optimizer",)),
    Offload(role="actor_infer", phase="update", parts=("kv", "weights")),
)


def even(task: Task, reply: str) -> float:
    """Something that any model earns a little of."""
    return sum(letter in "02468" for letter in reply) / 8


class Heard:
    """Workers that are what they were, and whose moves are written down."""

    def __init__(self, cluster: Cluster[Any], role: str, moves: list[tuple[str, str, tuple[str, ...]]]) -> None:
        self.cluster, self.role, self.moves = cluster, role, moves
        self.size = cluster.size

    async def at(self, rank: int, method: Callable[..., Awaitable[Any]], parts: Sequence[str]) -> Any:
        self.moves.append((self.role, method.__name__, tuple(parts)))
        return await self.cluster.at(rank, method, parts)


class Finished:
    """What a run leaves."""

    def __init__(self) -> None:
        self.metrics: list[dict[str, float]] = []
        self.moves: list[tuple[str, str, tuple[str, ...]]] = []
        self.weights: dict[str, torch.Tensor] = {}
        self.published: list[WeightsPublished] = []

    def report(self, step: int, metrics: Mapping[str, float]) -> None:
        self.metrics.append({name: value for name, value in metrics.items() if not name.startswith(("time", "speed"))})


def run_of(folder: Path, *changes: str) -> Run:
    (folder / "run.yaml").write_text(RUN)
    return load(folder / "run.yaml", [f"directory={folder}", *changes]).run


def trained(run: Run, folder: Path, placement: Placement) -> Finished:
    """The run from its first step to its last, placed so."""
    found = Finished()

    async def work() -> None:
        roles = build_roles(run, run.actor_train.optimizer, run.steps, placement=placement)
        data = build_data(run, run.tasks, roles.template)
        with (
            closing(RunDirectory.create(folder / run.name, overwrite=True)) as directory,
            closing(Journal(directory.journal)) as journal,
            closing(build_reporter(run, directory)) as reporter,
            Interrupt() as interrupt,
        ):
            checkpointer = build_checkpointer(run, directory, roles, journal)
            await train(roles, data, directory, RunServices(journal, checkpointer, reporter, interrupt))

    async def train(roles: Roles, data: Any, directory: RunDirectory, services: RunServices) -> None:
        await roles.start()
        loop = build_loop(run, roles, data, services)
        loop.report = found.report
        sharing = loop.publishers.by_policy[""].device_sharing
        if sharing is not None:
            sharing.clusters = {role: Heard(each, role, found.moves) for role, each in sharing.clusters.items()}  # type: ignore[assignment]
        await loop.run()
        await services.checkpointer.export()
        found.weights = dict(read_tensors(directory.path / "model"))
        found.published = [entry.event for entry in services.journal.events(WeightsPublished)]
        await roles.stop()

    asyncio.run(work())
    return found


def assert_equal(one: Finished, other: Finished) -> None:
    assert one.metrics == other.metrics
    assert one.weights.keys() == other.weights.keys()
    assert all(torch.equal(one.weights[name], other.weights[name]) for name in one.weights)
    assert [event.digest for event in one.published] == [event.digest for event in other.published]
