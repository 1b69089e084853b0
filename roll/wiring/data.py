"""Builds tasks, with their environments and rewards, from the configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

from roll.cluster.handle import Executor
from roll.config.schema import Run, TaskSourceConfig
from roll.data.dataset import read_tasks, rows_at_start
from roll.data.mixture import Mixture, MixturePart, SourceSettings
from roll.data.screening import ScreeningCounts, screen
from roll.data.task_file import NUM_CHECKED
from roll.data.tasks import Seeds
from roll.data.templates import Template, encode_prompt
from roll.errors import ConfigError
from roll.proxy.server import Proxy
from roll.rewards.base import LocalRewards, RewardService, task_faults
from roll.rollout.environments import Environments, MakeEnv, make_inline_env
from roll.rollout.source import TaskSource
from roll.tracking.progress import bar
from roll.types import Sampling, Task
from roll.wiring.proxy import MakeAttemptRunner, build_attempt_runners, build_proxy
from roll.wiring.services import build_environments, build_reward_service


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """The tasks of a run."""

    sources: list[TaskSource]
    held_out: list[TaskSource]
    mixture: Mixture
    rewards: RewardService
    """Started and stopped by the caller."""
    envs: Environments
    """Started and stopped by the caller."""
    proxy: Proxy | None
    """Server for agents, if the run has any; started and stopped by the caller."""
    screened: list[ScreeningCounts]
    """The screening of each source, those of validation last."""
    settings: dict[str, SourceSettings]
    """Sampling and filters of each source in training, by name."""


def build_sources(
    configs: Sequence[TaskSourceConfig],
    rewards: RewardService | None = None,
    make_env: MakeEnv = make_inline_env,
    make_runner: MakeAttemptRunner | None = None,
) -> list[TaskSource]:
    """Task sources; the domain of a task is the name of its source. `make_runner` builds runners for agent sections."""
    return [
        TaskSource(
            name=config.name,
            tasks=_usable_tasks(config),
            env=config.env.spec,
            reward=None if config.reward is None else config.reward.spec,
            rewards=rewards or LocalRewards(),
            make_env=make_env,
            attempt_runner=None if config.agent is None or make_runner is None else make_runner(config.agent),
        )
        for config in configs
    ]


def _usable_tasks(config: TaskSourceConfig) -> Sequence[Task]:
    """The tasks of a source; raises `ConfigError` for the first row on which its reward cannot score any response."""
    tasks = read_tasks(config)
    if config.reward is not None:
        for fault in task_faults(config.reward.spec, islice(rows_at_start(tasks), NUM_CHECKED)):
            raise ConfigError(f"tasks: source {config.name!r}: {fault}")
    return tasks


def build_data(
    run: Run,
    tasks: Sequence[TaskSourceConfig],
    template: Template,
    executor: Executor | None = None,
    *,
    draws_per_step: int | None = None,
) -> Data:
    """The training and validation tasks of a run; raises `ConfigError` for prompts that are too long.

    `executor` hosts the environments if the run places them there. A step draws `draws_per_step` tasks; None: one per
    group.
    """
    rewards, envs, proxy = build_reward_service(run.rewards), build_environments(run, executor), build_proxy(run)
    make_runner = build_attempt_runners(run, proxy)
    held_out, held_screened = build_held_out(run, template, rewards, envs.make, make_runner)
    withheld = [task for source in held_out if not isinstance(source.tasks, Seeds) for task in source.tasks]
    sources = build_sources(tasks, rewards, envs.make, make_runner)
    sources, screened = _screen_sources(run, tasks, sources, template, withheld)
    parts = [
        MixturePart(
            name=source.name,
            tasks=source.tasks,
            share=config.share,
            share_schedule=config.share_schedule,
            difficulty=config.task_sampling,
            curriculum=config.curriculum,
        )
        for config, source in zip(tasks, sources, strict=True)
    ]
    return Data(
        sources=sources,
        held_out=held_out,
        mixture=Mixture(
            parts,
            seed=run.seed,
            draws_per_step=draws_per_step or run.rollout.groups_per_step,
            quarantine_after=run.rollout.quarantine_after,
        ),
        rewards=rewards,
        envs=envs,
        proxy=proxy,
        screened=[*screened, *held_screened],
        settings={config.name: source_settings(run, config) for config in tasks},
    )


def build_held_out(
    run: Run,
    template: Template,
    rewards: RewardService,
    make_env: MakeEnv = make_inline_env,
    make_runner: MakeAttemptRunner | None = None,
) -> tuple[list[TaskSource], list[ScreeningCounts]]:
    """The validation tasks of a run, and their screening."""
    configs = run.validation.tasks
    sources, screened = _screen_sources(run, configs, build_sources(configs, rewards, make_env, make_runner), template)
    return sources, [replace(each, source=f"validation {each.source}") for each in screened]


def source_settings(run: Run, config: TaskSourceConfig) -> SourceSettings:
    """Sampling and filters of a source: its own settings, else those of the run."""
    keys = {"temperature", "top_k", "top_p", "max_new_tokens"}
    values = run.rollout.model_dump(include=keys) | config.model_dump(include=keys, exclude_none=True)
    max_new_tokens = values.pop("max_new_tokens")
    filters = run.algorithm.filters if config.filters is None else config.filters
    return SourceSettings(
        sampling=Sampling(**values), max_new_tokens=max_new_tokens, filters=tuple(each.spec for each in filters)
    )


def check_prompts(run: Run, template: Template, sources: Sequence[TaskSource]) -> None:
    """Raise `ConfigError` for prompts that leave no room for a response, of all tasks that the start reads."""
    prompts = [task for source in sources for task in rows_at_start(source.tasks) if task.messages]
    faults: list[str] = []
    with bar(len(prompts), "reading prompts") as advance:
        for task in prompts:
            length = _prompt_length(template, task)
            if length >= run.rollout.max_seq_len:
                faults.append(
                    f"task {task.id!r} of {task.domain}: its prompt has {length} tokens and rollout.max_seq_len is "
                    f"{run.rollout.max_seq_len}; raise rollout.max_seq_len or leave the task out"
                )
            advance(1)
    if faults:
        more = [f"and {len(faults) - 10} more prompts that are too long"] if len(faults) > 10 else []
        raise ConfigError("\n".join([*faults[:10], *more]))


def _screen_sources(
    run: Run,
    configs: Sequence[TaskSourceConfig],
    sources: Sequence[TaskSource],
    template: Template,
    withheld: Sequence[Task] = (),
) -> tuple[list[TaskSource], list[ScreeningCounts]]:
    """The sources without the tasks that their configuration excludes, and the account of each.

    Raises `ConfigError` for remaining prompts that leave no room for a response.
    """
    screened = [
        screen(
            config.name,
            source.tasks,
            dedup=config.dedup,
            max_prompt_tokens=config.max_prompt_tokens,
            held_out=withheld,
            length_of=lambda task: _prompt_length(template, task),
        )
        for config, source in zip(configs, sources, strict=True)
    ]
    for _, account in screened:
        if not account.kept:
            raise ConfigError(f"tasks: nothing is left of source {account}; exclude less")
    remaining = [replace(source, tasks=tasks) for source, (tasks, _) in zip(sources, screened, strict=True)]
    limits = [config.max_prompt_tokens or run.rollout.max_seq_len for config in configs]
    unmeasured = [each for each, limit in zip(remaining, limits, strict=True) if limit >= run.rollout.max_seq_len]
    check_prompts(run, template, unmeasured)  # screening has already limited the others
    return remaining, [account for _, account in screened]


def _prompt_length(template: Template, task: Task) -> int:
    return len(encode_prompt(template, task))
