"""Tasks, with their environments and rewards, from configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from roll.cluster.processes import ProcessCluster
from roll.config.schema import Named, Run
from roll.config.schema import Source as SourceConfig
from roll.data.mixture import Mixture, Part
from roll.data.tasks import Seeds
from roll.data.templates import Template
from roll.errors import ConfigError
from roll.registry import DATASETS
from roll.rewards.base import call
from roll.rewards.worker import RewardWorker
from roll.rollout.pool import Judge, RewardPool
from roll.rollout.source import Source
from roll.tracking.progress import bar
from roll.types import Call, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """The tasks of a run."""

    sources: list[Source]
    held_out: list[Source]
    mixture: Mixture
    pool: RewardPool | None
    """The processes that score, if there are any; to be started and stopped."""


def build_pool(run: Run) -> RewardPool | None:
    """The processes that score, if there are to be any."""
    if not run.rewards.workers:
        return None
    workers = ProcessCluster[RewardWorker](
        Call("roll.rewards.worker:RewardWorker"),
        run.rewards.workers,
        name="reward worker",
        limit_s=run.rewards.timeout_s,
    )
    return RewardPool(workers=workers, max_retries=run.rewards.max_retries)


def build_sources(configs: Sequence[SourceConfig], judge: Judge = call) -> list[Source]:
    """Tasks with their environments and rewards; a task's domain is its source's name."""
    return [
        Source(
            name=config.name,
            tasks=_tasks(config),
            env=call_of(config.env),
            reward=None if config.reward is None else call_of(config.reward),
            share=config.share,
            judge=judge,
        )
        for config in configs
    ]


def build_data(run: Run, tasks: Sequence[SourceConfig], template: Template) -> Data:
    """Everything to learn from and to be measured on, once it is known to fit the context."""
    pool = build_pool(run)
    judge = call if pool is None else pool.score
    sources, held_out = build_sources(tasks, judge), build_sources(run.validation.tasks, judge)
    check_prompts(run, template, [*sources, *held_out])
    parts = [Part(name=source.name, tasks=source.tasks, share=source.share) for source in sources]
    return Data(sources=sources, held_out=held_out, mixture=Mixture(parts, seed=run.seed), pool=pool)


def check_prompts(run: Run, template: Template, sources: Sequence[Source]) -> None:
    """Refuse prompts that leave no room for a reply, before anything starts."""
    prompts = [task for source in sources for task in source.tasks if task.messages]
    faults: list[str] = []
    with bar(len(prompts), "reading prompts") as advance:
        for task in prompts:
            length = len(template.open(task.messages, place=f"task {task.id!r}"))
            if length >= run.rollout.context:
                faults.append(
                    f"task {task.id!r} of {task.domain}: its prompt has {length} tokens and rollout.context is "
                    f"{run.rollout.context}; raise rollout.context or leave the task out"
                )
            advance(1)
    if faults:
        more = [f"and {len(faults) - 10} more prompts that are too long"] if len(faults) > 10 else []
        raise ConfigError("\n".join([*faults[:10], *more]))


def _tasks(config: SourceConfig) -> Sequence[Task]:
    found: Sequence[Task] = (
        DATASETS["seeds"]() if config.data is None else DATASETS[config.data.kind](**config.data.arguments)
    )
    found = found if config.limit is None else found[: config.limit]
    if not found:
        raise ConfigError(f"tasks: source {config.name!r} has no tasks; give it some")
    if isinstance(found, Seeds):
        return found.within(config.name)
    return [replace(task, domain=config.name) for task in found]


def call_of(named: Named) -> Call:
    """What a file names, as something any process can resolve."""
    return Call(named.kind, named.arguments)
