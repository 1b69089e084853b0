"""Tasks, with their environments and rewards, from configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from roll.cluster.handle import Executor
from roll.config.schema import Named, Run
from roll.config.schema import Source as SourceConfig
from roll.data.fields import Fields
from roll.data.mixture import Mixture, Part
from roll.data.orders import Curriculum, Difficulty
from roll.data.screening import Screened, Screening, screen
from roll.data.settings import SourceSettings
from roll.data.tasks import Seeds
from roll.data.templates import Template
from roll.errors import ConfigError
from roll.proxy.server import Proxy
from roll.registry import DATASETS
from roll.rewards.base import call
from roll.rollout.environments import Environments, MakeEnv, make_env
from roll.rollout.reward_pool import Judge, Scorer
from roll.rollout.source import Source
from roll.tracking.progress import bar
from roll.types import Call, Sampling, Task
from roll.wiring.environments import build_environments
from roll.wiring.proxy import MakePlayer, build_players, build_proxy
from roll.wiring.rewards import build_scorer

_SAMPLED = ("temperature", "top_k", "top_p", "max_new_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """The tasks of a run."""

    sources: list[Source]
    held_out: list[Source]
    mixture: Mixture
    scorer: Scorer
    """Who asks the rewards; to be started and stopped."""
    envs: Environments
    """Who makes the environments; to be started and stopped."""
    proxy: Proxy | None
    """Whom agents ask, where there are some; to be started and stopped."""
    screened: list[Screened]
    """What was left out of each source, those of validation after the others."""
    settings: dict[str, SourceSettings]
    """How each source is sampled and filtered in training, by its name."""


def build_sources(
    configs: Sequence[SourceConfig],
    judge: Judge = call,
    make: MakeEnv = make_env,
    play: MakePlayer | None = None,
) -> list[Source]:
    """Tasks with their environments and rewards; a task's domain is its source's name. `play` is who starts agents."""
    return [
        Source(
            name=config.name,
            tasks=_tasks(config),
            env=call_of(config.env),
            reward=None if config.reward is None else call_of(config.reward),
            share=config.share,
            judge=judge,
            make=make,
            player=None if config.agent is None or play is None else play(config.agent),
        )
        for config in configs
    ]


def build_data(run: Run, tasks: Sequence[SourceConfig], template: Template, executor: Executor | None = None) -> Data:
    """Everything to learn from and to be measured on, once it is known to fit the context.

    `executor` is that of the run, where environments are to live there.
    """
    scorer, envs, proxy = build_scorer(run.rewards), build_environments(run, executor), build_proxy(run)
    play = build_players(run, proxy)
    held_out, held_screened = build_held_out(run, template, scorer.score, envs.make, play)
    withheld = [task for source in held_out if not isinstance(source.tasks, Seeds) for task in source.tasks]
    sources, screened = _screened(tasks, build_sources(tasks, scorer.score, envs.make, play), template, withheld)
    check_prompts(run, template, _unmeasured(run, tasks, sources))
    parts = [_part(config, source) for config, source in zip(tasks, sources, strict=True)]
    return Data(
        sources=sources,
        held_out=held_out,
        mixture=Mixture(parts, seed=run.seed),
        scorer=scorer,
        envs=envs,
        proxy=proxy,
        screened=[*screened, *held_screened],
        settings={config.name: settings_of(run, config) for config in tasks},
    )


def build_held_out(
    run: Run, template: Template, judge: Judge, make: MakeEnv = make_env, play: MakePlayer | None = None
) -> tuple[list[Source], list[Screened]]:
    """What to be measured on, and what was left out of it."""
    configs = run.validation.tasks
    sources, screened = _screened(configs, build_sources(configs, judge, make, play), template)
    check_prompts(run, template, _unmeasured(run, configs, sources))
    return sources, [replace(each, source=f"validation {each.source}") for each in screened]


def settings_of(run: Run, config: SourceConfig) -> SourceSettings:
    """How a source is sampled and filtered: as it says itself, else as the run does."""
    given, below = config.model_dump(include=set(_SAMPLED), exclude_none=True), run.rollout
    filters = run.algorithm.filters if config.filters is None else config.filters
    return SourceSettings(
        sampling=Sampling(
            temperature=given.get("temperature", below.temperature),
            top_k=given.get("top_k", below.top_k),
            top_p=given.get("top_p", below.top_p),
        ),
        max_new_tokens=given.get("max_new_tokens", below.max_new_tokens),
        filters=tuple(map(call_of, filters)),
    )


def check_prompts(run: Run, template: Template, sources: Sequence[Source]) -> None:
    """Refuse prompts that leave no room for a reply, before anything starts."""
    written = [source.tasks for source in sources if not isinstance(source.tasks, Seeds)]  # seeds have no words
    prompts = [task for tasks in written for task in tasks if task.messages]
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
    found = _read(config)
    found = found if config.limit is None else found[: config.limit]
    if not found:
        raise ConfigError(f"tasks: source {config.name!r} has no tasks; give it some")
    if isinstance(found, Seeds):
        return found.within(config.name)
    return [replace(task, domain=config.name) for task in found]


def _read(config: SourceConfig) -> Sequence[Task]:
    if config.data is None:
        return DATASETS["seeds"]()
    if config.fields is None:
        return DATASETS[config.data.kind](**config.data.arguments)
    if not DATASETS.takes(config.data.kind, "fields"):
        raise ConfigError(
            f"tasks: source {config.name!r}: dataset {config.data.kind!r} gives whole tasks and has no rows to map; "
            "remove 'fields', or let the function take it"
        )
    fields = Fields(**config.fields.model_dump())
    return DATASETS[config.data.kind](**config.data.arguments, fields=fields)


def _screened(
    configs: Sequence[SourceConfig], sources: Sequence[Source], template: Template, withheld: Sequence[Task] = ()
) -> tuple[list[Source], list[Screened]]:
    """The sources without what their configuration leaves out, and the account of it."""

    def length_of(task: Task) -> int:
        return len(template.open(task.messages, place=f"task {task.id!r}"))

    found = [
        screen(
            config.name,
            source.tasks,
            Screening(dedup=config.dedup, max_prompt_tokens=config.max_prompt_tokens),
            held_out=withheld,
            length_of=length_of,
        )
        for config, source in zip(configs, sources, strict=True)
    ]
    for _, account in found:
        if not account.kept:
            raise ConfigError(f"tasks: nothing is left of source {account}; keep more of it")
    kept = [replace(source, tasks=tasks) for source, (tasks, _) in zip(sources, found, strict=True)]
    return kept, [account for _, account in found]


def _unmeasured(run: Run, configs: Sequence[SourceConfig], sources: Sequence[Source]) -> list[Source]:
    """Those of whose prompts it is not known yet that they fit the context."""
    limits = [config.max_prompt_tokens or run.rollout.context for config in configs]
    return [source for source, limit in zip(sources, limits, strict=True) if limit >= run.rollout.context]


def _part(config: SourceConfig, source: Source) -> Part:
    return Part(
        name=source.name,
        tasks=source.tasks,
        share=source.share,
        difficulty=config.sampling and Difficulty(**config.sampling.model_dump(exclude={"kind"})),
        curriculum=config.curriculum and Curriculum(**config.curriculum.model_dump()),
    )


def call_of(named: Named) -> Call:
    """What a file names, as something any process can resolve."""
    return Call(named.kind, named.arguments)
